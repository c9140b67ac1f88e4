"""Sweeps end with every run's outcome, whatever happens to the workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from dropped_interrupts import dropped_interrupt
from isornn.training.sweep import LocalWorkers, SweepError, SweptRun, WorkerLost, collect, execute, run_sweep
from isornn.training.sweep import workers as workers_module
from isornn.training.sweep.ledger import ask
from toy_runs import Killed, count, done, steps


class MortalWorkers:
    """The calling process, for which a kill is an exception; counts how much it has to do at a time."""

    def __init__(self) -> None:
        self.calls: list[bool] = []

    def start(self) -> Any:
        return nullcontext()

    def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
        self.calls.append(alone)
        try:
            work()
        except Killed as error:
            raise WorkerLost("killed") from error


def states(runs: list[SweptRun]) -> list[str]:
    return [run.state for run in runs]


def test_a_failed_run_stops_no_other_and_is_not_repeated(tmp_path: Path) -> None:
    plan: dict[str, dict[str, Any]] = {"a": {"to": 2}, "b": {"to": 3, "fails_at": 1}, "c": {"to": 1}, "d": {"to": "x"}}
    runs = run_sweep(plan, tmp_path, count, LocalWorkers(1))
    assert states(runs) == ["finished", "failed", "finished", "failed"]
    assert runs[0].record == {"reached": 2} and runs[1].reason == "ArithmeticError: step 1"
    assert runs[1].done == (1, 3) and str(runs[3].reason).startswith("TypeError: ")
    outcome = json.loads((tmp_path / "b" / "outcome.json").read_text())
    assert any("toy_runs.py" in line for line in outcome["traceback"])
    assert run_sweep(plan, tmp_path, count, LocalWorkers(1)) == runs
    assert [steps(tmp_path / name) for name in "abc"] == [[0, 1], [0], [0]]


def test_failed_runs_wait_again_when_asked(tmp_path: Path) -> None:
    run_sweep({"a": {"to": 3, "fails_at": 1}}, tmp_path, count, LocalWorkers(1))

    def repaired(configuration: dict[str, Any], folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
        return count({**configuration, "fails_at": None}, folder, progress)

    runs = run_sweep({"a": {"to": 3, "fails_at": 1}}, tmp_path, repaired, LocalWorkers(1), retry_failed=True)
    assert states(runs) == ["finished"] and runs[0].takes == 2
    assert steps(tmp_path / "a") == [0, 1, 2]


def test_a_run_that_fails_again_at_once_came_no_less_far(tmp_path: Path) -> None:
    plan = {"a": {"to": 3, "fails_at": 1}}
    before = run_sweep(plan, tmp_path, count, LocalWorkers(1))
    (after,) = run_sweep(plan, tmp_path, count, LocalWorkers(1), retry_failed=True)
    assert (after.state, after.takes, after.done) == ("failed", 2, before[0].done) == ("failed", 2, (1, 3))


def test_a_record_that_json_cannot_hold_is_a_failure(tmp_path: Path) -> None:
    (run,) = run_sweep({"a": {}}, tmp_path, lambda *_: {"loss": float("nan")}, LocalWorkers(1))
    assert run.state == "failed" and "JSON" in str(run.reason)


def test_a_run_that_kills_its_workers_is_found_and_the_others_finish(tmp_path: Path) -> None:
    """It dies beside others twice, and then alone; the others are never blamed."""
    workers = MortalWorkers()
    plan = {"a": {"to": 1}, "b": {"to": 3, "killed_at": 1}, "c": {"to": 2}}
    runs = run_sweep(plan, tmp_path, count, workers)
    assert states(runs) == ["finished", "failed", "finished"]
    assert "kills its worker" in str(runs[1].reason) and runs[1].takes == 3
    assert workers.calls == [False, False, True]
    assert [steps(tmp_path / name) for name in "abc"] == [[0], [0], [0, 1]]


def test_a_run_that_gets_further_each_time_is_not_given_up(tmp_path: Path) -> None:
    def killed_often(configuration: dict[str, Any], folder: Path, progress: Any) -> dict[str, Any]:
        return count({**configuration, "killed_at": done(folder) + 1}, folder, progress)

    (run,) = run_sweep({"a": {"to": 5}}, tmp_path, killed_often, MortalWorkers())
    assert run.state == "finished" and run.takes == 5
    assert steps(tmp_path / "a") == [0, 1, 2, 3, 4]


def test_workers_that_die_at_once_end_the_sweep(tmp_path: Path) -> None:
    class Stillborn(MortalWorkers):
        def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
            self.calls.append(alone)
            raise WorkerLost("no such module")

    workers = Stillborn()
    with pytest.raises(WorkerLost, match="no such module"):
        run_sweep({"a": {"to": 1}}, tmp_path, count, workers)
    assert len(workers.calls) == 3
    assert states(collect(tmp_path)) == ["waiting"]


def test_no_more_processes_are_started_than_there_are_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def spread(work: Callable[[], None], processes: int, threads: int, alone: bool) -> None:
        started.append(processes)
        work()

    monkeypatch.setattr(workers_module, "_spread", spread)
    for jobs in (1, 2, 10**9):
        runs = run_sweep({name: {"to": 1} for name in "abc"}, tmp_path / str(jobs), count, LocalWorkers(jobs))
        assert states(runs) == ["finished"] * 3
    assert started == [1, 2, 3]


def test_a_killed_worker_costs_the_others_nothing_that_was_kept(tmp_path: Path) -> None:
    """SIGKILL to one of two real workers in the middle of its run."""
    plan: dict[str, dict[str, Any]] = {name: {"to": 20, "pause": 0.05} for name in "abcd"}
    # it keeps the other worker, which would otherwise take b up before joblib has stopped that one too
    plan["a"]["pause"] = 0.2
    plan["e"] = {"to": 1, "fails_at": 0}
    killed: list[int] = []

    def kill() -> None:
        while done(tmp_path / "b") < 10:
            time.sleep(0.01)
        killed.append(int((tmp_path / "b" / "process").read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    runs = run_sweep(plan, tmp_path, count, LocalWorkers(2))
    killer.join()
    assert states(runs) == ["finished"] * 4 + ["failed"]
    assert killed[0] != os.getpid() and runs[1].takes == 2
    for name in "abcd":  # a kill between a step and its checkpoint repeats that step
        assert set(steps(tmp_path / name)) == set(range(20)) and len(steps(tmp_path / name)) <= 21


def test_two_sweeps_on_one_folder_share_the_runs(tmp_path: Path) -> None:
    plan = {name: {"to": 5, "pause": 0.01} for name in "abcdefgh"}
    results: list[list[SweptRun]] = []
    work = threading.Thread(target=lambda: results.append(run_sweep(plan, tmp_path, count, LocalWorkers(1))))
    work.start()
    results.append(run_sweep(plan, tmp_path, count, LocalWorkers(1)))
    work.join()
    assert [states(runs) for runs in results] == [["finished"] * 8] * 2
    assert all(steps(tmp_path / name) == [0, 1, 2, 3, 4] for name in plan)


SWEEP = """
import sys
from pathlib import Path
from isornn.training.sweep import LocalWorkers, run_sweep
from toy_runs import count
run_sweep({"a": {"to": 1}, "b": {"to": 40, "pause": 0.05}}, Path(sys.argv[1]), count, LocalWorkers(1))
"""


def test_a_killed_sweep_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Its lock falls with it; until then the run is seen as running, and not taken by another."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path)], env=environment)
    while not (tmp_path / "b").exists() or done(tmp_path / "b") < 5:
        time.sleep(0.02)
    assert states(collect(tmp_path)) == ["finished", "running"]
    process.kill()
    process.wait()
    before, (_, left) = done(tmp_path / "b"), collect(tmp_path)
    assert left.state == "waiting" and 0 < before < 40
    runs = run_sweep({"a": {"to": 1}, "b": {"to": 40}}, tmp_path, count, LocalWorkers(1))
    assert states(runs) == ["finished"] * 2 and [run.takes for run in runs] == [1, 2]
    assert steps(tmp_path / "a") == [0] and set(steps(tmp_path / "b")) == set(range(40))
    assert len(steps(tmp_path / "b")) <= 41 and left.configuration == {"to": 40, "pause": 0.05}


def test_watching(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    plan: dict[str, dict[str, Any]] = {"a": {"to": 3, "pause": 0.5}, "b": {"to": 1}}
    run_sweep(plan, tmp_path, count, LocalWorkers(1), watch=lambda runs: seen.append(states(runs)))
    assert seen[0] == ["running", "waiting"] and seen[-1] == ["finished", "finished"]


def test_a_sweep_is_watched_while_its_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    plan: dict[str, dict[str, Any]] = {"a": {"to": 1, "fails_at": 0}, "b": {"to": 1}, "c": {"to": 2}}
    run_sweep({"a": plan["a"]}, tmp_path, count, LocalWorkers(1))

    def slow(folder: Path, configuration: dict[str, Any], **options: Any) -> None:
        if folder.name == "c":
            time.sleep(1.5)
        ask(folder, configuration, **options)

    monkeypatch.setattr(execute, "ask", slow)
    watch = seen.append
    run_sweep(plan, tmp_path, count, LocalWorkers(1), watch=lambda runs: watch(states(runs)), retry_failed=True)
    assert seen[0] == ["waiting"] * 3 and seen[-1] == ["failed", "finished", "finished"]


def test_a_watcher_says_that_a_record_is_damaged_and_goes_on(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def damaging(configuration: dict[str, Any], folder: Path, progress: Any) -> dict[str, Any]:
        outcome = tmp_path / "a" / "outcome.json"
        whole = outcome.read_text() if outcome.exists() else ""
        if whole:
            outcome.write_text("{")
            time.sleep(2.5)
            outcome.write_text(whole)
            seen.clear()
            time.sleep(1.5)
        return {}

    with pytest.warns(UserWarning, match=r"how the runs stand cannot be read: .*outcome.json") as warned:
        runs = run_sweep(
            {"a": {}, "b": {}}, tmp_path, damaging, MortalWorkers(), watch=lambda r: seen.append(states(r))
        )
    assert len(warned) == 1 and states(runs) == ["finished", "finished"]
    assert seen[0] == ["finished", "running"] and seen[-1] == ["finished", "finished"]


def test_an_error_of_watch_itself_is_said_at_once(tmp_path: Path) -> None:
    def watch(runs: list[SweptRun]) -> None:
        raise ArithmeticError("nothing to divide by")

    plan: dict[str, dict[str, Any]] = {"a": {"to": 4, "pause": 0.5}}
    with (
        pytest.warns(UserWarning, match="watch: ArithmeticError: nothing to divide by; it is called again at the end"),
        pytest.raises(ArithmeticError, match="nothing to divide by"),
    ):
        run_sweep(plan, tmp_path, count, MortalWorkers(), watch=watch)
    assert done(tmp_path / "a") == 4


def test_workers_have_the_threads_they_were_given(tmp_path: Path) -> None:
    def threads(*_: Any) -> dict[str, Any]:
        return {"threads": torch.get_num_threads()}

    before = torch.get_num_threads()
    (run,) = run_sweep({"a": {}}, tmp_path, threads, LocalWorkers(1, threads=before + 1))
    assert run.record == {"threads": before + 1} and torch.get_num_threads() == before


@pytest.mark.parametrize(("arguments", "words"), [((0,), "jobs: 0 .* at least 1"), ((2, 0), "threads: 0 .* least 1")])
def test_refused_workers(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(SweepError, match=words):
        LocalWorkers(*arguments)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="folder: .* a folder that holds runs"):
        collect(tmp_path)


PARENT = """
import sys
from pathlib import Path
from isornn.training.sweep import LocalWorkers, run_sweep
from toy_runs import count
plan = {name: {"to": 100000, "pause": 0.05} for name in "abcd"}
run_sweep(plan, Path(sys.argv[1]), count, LocalWorkers(2))
"""


def processes_of(group: int) -> list[str]:
    """The command lines of all processes in a group but zombies."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, own = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                found.append((place / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are listed in /proc")
@pytest.mark.parametrize("at_work", [True, False], ids=["at work", "while they import"])
def test_workers_end_with_their_sweep(tmp_path: Path, at_work: bool) -> None:
    """Within a minute none is left of a killed sweep, and no lock; `benchmarks/kills.py` has other signals."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )

    def started() -> bool:
        if at_work:
            return all((tmp_path / name).exists() and done(tmp_path / name) > 1 for name in "ab")
        return sum("--process-name" in line for line in processes_of(process.pid)) == 2

    try:
        while not started():
            assert process.poll() is None
            time.sleep(0.05)
        assert len(processes_of(process.pid)) >= 3
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60  # under load a worker imports for tens of seconds before it looks
        while processes_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert processes_of(process.pid) == []
        assert states(collect(tmp_path)) == ["waiting"] * 4
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class PatientWorkers(MortalWorkers):
    """They miss an interrupt and wait."""

    def work(self, work: Callable[[], None], *, runs: int, alone: bool = False) -> None:
        dropped_interrupt()
        for _ in range(1000):
            time.sleep(0.01)


def test_an_interrupt_that_python_drops_ends_the_wait_for_workers(tmp_path: Path) -> None:
    begun = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_sweep({"a": {"to": 2}}, tmp_path, count, PatientWorkers(), watch=lambda runs: None)
    assert time.perf_counter() - begun < 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert states(run_sweep({"a": {"to": 2}}, tmp_path, count, LocalWorkers(1))) == ["finished"]
