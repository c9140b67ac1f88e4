"""Who has a run of a sweep, and which runs were lost with their workers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from isornn.records import write_record
from isornn.training.lock import locked
from isornn.training.sweep.ledger import CLAIM, CONFIGURATION, OUTCOME, lost, read_run


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
    with worked_on(tmp_path, held):
        assert lost(tmp_path, "ours") is answer


@contextmanager
def worked_on(folder: Path, held: bool = True) -> Iterator[None]:
    """Another thread has the lock of the folder for as long as the block goes on."""
    taken, over = threading.Event(), threading.Event()

    def work() -> None:
        with locked(folder) as ours:
            assert ours
            taken.set()
            over.wait(30)

    worker = threading.Thread(target=work)
    if held:
        worker.start()
        assert taken.wait(30)
    try:
        yield
    finally:
        over.set()
        if held:
            worker.join(30)


def test_a_run_that_no_sweep_has_taken_is_running_while_its_folder_is_locked(tmp_path: Path) -> None:
    """As by ``isornn train``: a sweep that takes it as waiting asks for it again and again, without a pause."""
    write_record(tmp_path / CONFIGURATION, {})
    assert read_run(tmp_path).state == "waiting"
    assert not (tmp_path / ".lock").exists()  # nothing is written where nobody was at work
    with worked_on(tmp_path):
        assert read_run(tmp_path).state == "running"
    assert read_run(tmp_path).state == "waiting"


def test_the_state_of_a_run_is_read_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a colleague's sweep: with a lock that is opened for writing it was "Permission denied"."""
    write_record(tmp_path / CONFIGURATION, {})

    def opened_for_reading(path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        assert mode in ("r", "rb")
        return opened(path, mode, *others, **named)

    opened = Path.open
    with worked_on(tmp_path):
        monkeypatch.setattr(Path, "open", opened_for_reading)
        monkeypatch.setattr(FileLock, "acquire", _denied)
        assert read_run(tmp_path).state == "running"
    assert read_run(tmp_path).state == "waiting"


def _denied(*_: object, **__: object) -> None:
    raise PermissionError
