"""Who has a run of a sweep, and which runs were lost with their workers."""

import threading
from pathlib import Path

import pytest

from isornn.records import write_record
from isornn.training.lock import locked
from isornn.training.sweep.ledger import CLAIM, OUTCOME, lost


@pytest.mark.parametrize(
    ("sweep", "ended", "held", "answer"),
    [
        ("ours", False, False, True),
        ("ours", True, False, False),
        ("ours", False, True, False),
        ("ours", True, True, False),
        ("another", False, False, False),
    ],
)
def test_a_run_is_lost_without_an_outcome_and_without_a_worker(
    tmp_path: Path, sweep: str, ended: bool, held: bool, answer: bool
) -> None:
    write_record(tmp_path / CLAIM, {"sweep": sweep, "state": "running"})
    if ended:
        write_record(tmp_path / OUTCOME, {"state": "done"})
    taken, over = threading.Event(), threading.Event()

    def work() -> None:
        with locked(tmp_path) as ours:
            assert ours
            taken.set()
            over.wait(30)

    worker = threading.Thread(target=work)
    if held:
        worker.start()
        assert taken.wait(30)
    try:
        assert lost(tmp_path, "ours") is answer
    finally:
        over.set()
        if held:
            worker.join(30)
