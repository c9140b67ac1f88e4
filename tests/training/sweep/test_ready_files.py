"""The papers' scans and ranges, as `sweeps/` has them, and the file that the documentation shows."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from isornn.training.sweep import expand, load_sweep, named_by_hash

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "sweeps").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_runs_of_a_file_are_allowed(file: Path) -> None:
    plan = load_sweep(file)
    assert len(named_by_hash(plan)) == len(plan) == {"gilboa": 16, "chen": 216}[file.stem.partition("-")[0]]


@pytest.mark.parametrize("name", ["gilboa-repeated-pixels", "gilboa-concatenated-digits"])
def test_gilboas_scan(name: str) -> None:
    plan = load_sweep(next(file for file in FILES if file.stem == name))
    for start in ("critical", "standard"):
        rates = [run["optimiser"]["rate"] for run in plan if run["start"]["name"] == f"gilboa-peephole-{start}"]
        np.testing.assert_allclose(rates, np.geomspace(1e-2, 1e-5, 8), rtol=1e-14)


def test_chens_ranges() -> None:
    """The rate by epoch is Zaremba's: decay to the power of the epochs since max-epoch."""
    plan = load_sweep(next(file for file in FILES if file.stem == "chen-supplement-f"))
    seen = set()
    for run in plan:
        at, decay, rate = run["schedule"]["at"], run["schedule"]["factor"], run["optimiser"]["rate"]
        epoch = run["updates"] // 13
        factors = [decay ** sum(update <= k * epoch for update in at) for k in range(13)]
        (longest,) = (m for m in (4, 7, 11) if factors == [decay ** max(k + 1 - m, 0) for k in range(13)])
        assert run["model"]["layers"] > 1  # between which dropout acts
        seen.add((rate, longest, decay, run["model"]["dropout"]))
    # Of a loss summed over 20 steps, where this library's is a mean: 0.1, 0.2, 0.3, 0.5, 1, 2, and clip 5.
    assert {run["clip"] * 20 for run in plan} == {5.0}
    axes = ({2, 4, 6, 10, 20, 40}, {4, 7, 11}, {0.5, 0.65, 0.8}, {0.0, 0.2, 0.3, 0.5})
    assert len(seen) == 216 and tuple(map(set, zip(*seen, strict=True))) == axes


def test_the_documented_file() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(named_by_hash(expand(tomllib.loads(block)))) == 18
