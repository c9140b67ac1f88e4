"""The wheel and the source archive, built and tried as they are installed: ``make release-check``.

Builds both, checks their metadata and what is in them, installs the wheel alone and with all extras in fresh
environments, runs the examples of the installed modules and each command once, and builds the wheel again from the
source archive.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from environments import REPOSITORY, made, run, smoke

MOST_BYTES = 1_500_000  # 3.0 MB of sources make 1.2 MB; data that slips in is seen
CONSTRAINTS = REPOSITORY / "constraints.txt"
# What the core does not pull in; each is an extra's.
NOT_IN_CORE = ("matplotlib", "typer", "joblib", "lightning-fabric", "ray", "plotly", "dash", "tensorboard")
ALLOWED = (".py", ".html", ".css", ".js", ".typed", "/digits.npz", "/digits.md")


def check_wheel(wheel: Path) -> list[str]:
    """Its files: sources, templates and the digits with their licence, and no more than MOST_BYTES."""
    size = wheel.stat().st_size
    assert size <= MOST_BYTES, f"{wheel.name}: {size} bytes; at most {MOST_BYTES}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    about = [name for name in names if ".dist-info/" in name]
    assert {Path(name).name for name in about} >= {"LICENSE", "NOTICE", "METADATA", "entry_points.txt"}, about
    modules = sorted(set(names) - set(about))
    strange = [name for name in modules if not (name.startswith("isornn/") and name.endswith(ALLOWED))]
    assert not strange, f"{wheel.name}: {strange}"
    assert "isornn/data/digits.md" in modules, "the embedded digits' licence is missing"
    for line in (
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        "Description-Content-Type: text/markdown",
    ):
        assert line in metadata, f"{wheel.name}: no {line!r} in its metadata"
    relative = re.findall(r"\]\((?!https?://)[^)]*\)", metadata)
    assert not relative, f"{wheel.name}: links that the package index cannot follow: {relative}"
    print(f"{wheel.name}: {len(modules)} files, {size / 1e3:,.0f} kB")
    return modules


def check_sdist(sdist: Path, folder: Path, modules: list[str]) -> None:
    """The wheel that is built from it has the same files."""
    shutil.unpack_archive(sdist, folder)
    (source,) = folder.iterdir()
    rebuilt = folder / "rebuilt"
    run(sys.executable, "-m", "build", "--wheel", "-o", rebuilt, source)
    with zipfile.ZipFile(next(rebuilt.glob("*.whl"))) as archive:
        again = sorted(name for name in archive.namelist() if ".dist-info/" not in name)
    assert again == modules, f"{sdist.name}: {set(again) ^ set(modules)}"
    print(f"{sdist.name}: {sdist.stat().st_size / 1e3:,.0f} kB, and builds the same wheel")


def check_core(wheel: Path, folder: Path) -> None:
    """The wheel without extras."""
    python = made(folder / "core", str(wheel), constraints=CONSTRAINTS)
    installed = run(python, "-m", "pip", "list", "--format=freeze").lower()
    pulled = [name for name in NOT_IN_CORE if f"\n{name}==" in f"\n{installed}"]
    assert not pulled, f"the core pulls in {pulled}"
    print(f"core: {len(installed.splitlines())} packages")
    print(smoke(python, folder / "at-core", "core").splitlines()[-1])


def check_all(wheel: Path, folder: Path) -> None:
    """The wheel with all extras: the examples of its modules, and each command."""
    python = made(folder / "all", f"{wheel}[all]", "pytest", constraints=CONSTRAINTS)
    package = Path(run(python, "-c", "import isornn; print(isornn.__path__[0])", at=folder).strip())
    assert package.is_relative_to(folder), f"{package} is not the installed library"
    options = ["-q", "-c", str(REPOSITORY / "pyproject.toml"), "-o", "pythonpath=", "-p", "no:cacheprovider"]
    # Run beside the package, where the files that pyproject.toml leaves out are found.
    print("examples:", run(python, "-m", "pytest", *options, package, at=package.parent).splitlines()[-1])
    print("\n".join(line for line in smoke(python, folder / "at-all", "all").splitlines() if line.endswith("works")))


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dist = folder / "dist"
        run(sys.executable, "-m", "build", "-o", dist)
        (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        print(run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist).strip())
        modules = check_wheel(wheel)
        (folder / "sdist").mkdir()
        check_sdist(sdist, folder / "sdist", modules)
        check_core(wheel, folder)
        check_all(wheel, folder)


if __name__ == "__main__":
    main()
