"""Ray where there is none; a real cluster is in `benchmarks/ray_cluster.py`."""

import sys
from pathlib import Path

import pytest

from isornn.training.sweep import RayWorkers, SweepError, run_sweep


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_where_nothing_answers(address: str) -> None:
    workers = RayWorkers(address=address).start()
    with pytest.raises(SweepError, match=f"address: '{address}' .* no Ray cluster answers there"):
        workers.__enter__()


def test_without_ray_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "isornn.training.sweep.cluster", raising=False)
    with pytest.raises(SweepError, match=r"backend: 'ray' .* pip install 'isornn\[cluster\]'"):
        run_sweep({"a": {}}, tmp_path / "new", lambda *_: {}, RayWorkers())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("jobs", [0, 1])
def test_one_worker_is_refused(jobs: int) -> None:
    with pytest.raises(SweepError, match=f"jobs: {jobs} .* at least 2"):
        RayWorkers(jobs)
