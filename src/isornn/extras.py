"""Packages that only parts of the library need, and the extra of ``pip install 'isornn[EXTRA]'`` that has each."""

from __future__ import annotations

import importlib.util

EXTRAS = {
    "typer": "cli",
    "matplotlib": "plot",
    "lightning_fabric": "train",
    "tensorboard": "train",
    "safetensors": "train",
    "joblib": "train",
    "ray": "cluster",
    "plotly": "report",
    "jinja2": "report",
    "dash": "explore",
    "waitress": "explore",
    "lightning": "lightning",
    "transformers": "transformers",
    "stable_baselines3": "sb3",
    "sb3_contrib": "sb3",
}


def named(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error as it is shown: with the extra to install, where the missing package is one of an extra's.

    >>> print(named(ModuleNotFoundError("No module named 'dash'", name="dash.exceptions")))
    dash is not installed: pip install 'isornn[explore]'
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    return ModuleNotFoundError(f"{package} is not installed: pip install 'isornn[{EXTRAS[package]}]'", name=package)


def require(extra: str) -> None:
    """Raises ModuleNotFoundError, which names the extra, where one of its packages is missing."""
    for package, its_extra in EXTRAS.items():
        if its_extra == extra and importlib.util.find_spec(package) is None:
            raise named(ModuleNotFoundError(name=package))
