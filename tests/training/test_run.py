"""Runs: what they leave in their folder, and that no interrupt changes it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from isornn.modes import denormals_flushed, flushes_denormals
from isornn.records import RecordError
from isornn.tasks import Adding, loader, one_pass
from isornn.training import RunRecord, SequenceModel, State, evaluate, run, train
from isornn.training.batches import share
from isornn.training.building import build_model
from isornn.training.checkpoint import CheckpointError, load_checkpoint
from isornn.training.evaluation import task_loss
from isornn.training.problems import problem_named
from isornn.training.run import RunError
from small_runs import OTHERS, SMALL, Stop, configured, ran, rows, same, stop_at, with_paths


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a text in Penn Treebank's form, of which a batch of 8 by 3 words has a fifth."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"ptb.{part}.txt").write_text("the cat saw the dog\nno dog saw it\n" * 12)
    return folder


# -- interrupts -------------------------------------------------------------------------------------------------------


def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random times, before random file operations, and in the middle of a checkpoint."""
    (tmp_path / "given.json").write_text(json.dumps(SMALL))
    script = Path(__file__).with_name("killed.py")
    arguments = [sys.executable, "-W", "error", str(script), str(tmp_path), str(tmp_path / "given.json"), "5"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=with_paths())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"at a time": 2, "at a file": 2, "in a checkpoint": 2}
    whole = RunRecord.load(tmp_path / "whole" / "record.json")
    for killed in tmp_path.glob("killed-*"):
        assert same(tmp_path / "whole", killed)
        assert replace(RunRecord.load(killed / "record.json"), seconds=whole.seconds) == whole
        assert not [file for file in killed.iterdir() if file.name.startswith(".") and file.name != ".lock"]


@pytest.mark.filterwarnings("ignore::isornn.tasks.DataWarning")
@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_stopped_between_checkpoints_it_goes_on_to_the_same_bytes(
    changes: dict[str, Any], tmp_path: Path, texts: Path
) -> None:
    configuration = configured(**changes)
    whole = ran(configuration, tmp_path / "whole", data=texts)
    for update in (3, 10):
        with pytest.raises(Stop):
            ran(configuration, tmp_path / "stopped", on_update=[stop_at(update)], data=texts)
    stopped = ran(configuration, tmp_path / "stopped", data=texts)
    assert same(tmp_path / "whole", tmp_path / "stopped")
    assert replace(stopped, seconds=whole.seconds) == whole


def test_without_its_generators_it_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the comparison of bytes can fail: dropout after an interrupt, from another place in the stream."""
    ran(configured(), tmp_path / "whole")
    with pytest.raises(Stop):
        ran(configured(), tmp_path / "stopped", on_update=[stop_at(10)])
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    ran(configured(), tmp_path / "stopped")
    assert not same(tmp_path / "whole", tmp_path / "stopped")


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(10)])
    file = tmp_path / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"checkpoint.pt: truncated or changed"):
        ran(configured(), tmp_path)


def test_best_weights_that_are_ahead_of_the_checkpoint_are_put_back(tmp_path: Path) -> None:
    """As a kill between the two files leaves them: a GPU need not come to the same weights again."""
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(5)])
    best = (tmp_path / "weights.safetensors").read_bytes()
    (tmp_path / "weights.safetensors").write_bytes(b"ahead")
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(5)])
    assert (tmp_path / "weights.safetensors").read_bytes() == best


def test_metrics_that_were_cut_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(10)])
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: shorter than"):
        ran(configured(), tmp_path)


# -- what is left -----------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = ran(configured(), tmp_path)
    assert ran(configured(), tmp_path, on_update=[stop_at(1)]) == first


def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(1)])
    with pytest.raises(RunError, match=r"another clip \(0.5, not 1.0\), seed \(0, not 2\); name another folder"):
        ran(configured(seed=2, clip=1), tmp_path)


def test_metrics_are_those_of_the_weights(tmp_path: Path) -> None:
    """The best weights, loaded into a model of their own, have the best validation loss and the test's."""
    configuration = configured()
    record = ran(configuration, tmp_path)
    told = rows(tmp_path)
    assert [row["update"] for row in told] == [4, 8, 12, 16]
    best = min(told, key=lambda row: row["validation"]["loss"])
    assert (record.best_update, record.best) == (best["update"], best["validation"])
    assert record.last == told[-1]["validation"]
    problem = problem_named("adding", {"length": 8, "held_out": 20}, 8)
    model = build_model(configuration, problem)
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert evaluate(model, one_pass(problem.validation, 8)) == record.best
    assert evaluate(model, one_pass(problem.test, 8)) == record.test != record.best


def test_the_training_rows_are_of_every_update(tmp_path: Path) -> None:
    losses: list[float] = []
    norms: list[float] = []
    rates: list[float] = []

    def told(state: State) -> None:
        losses.append(state.loss)
        norms.append(state.gradient_norm)
        rates.append(state.optimizer.param_groups[0]["lr"])

    ran(configured(), tmp_path, on_update=[told])
    training = [row["training"] for row in rows(tmp_path)]
    assert [row["loss"] for row in training] == pytest.approx([sum(losses[k : k + 4]) / 4 for k in range(0, 16, 4)])
    assert [row["gradient_norm"] for row in training] == [max(norms[k : k + 4]) for k in range(0, 16, 4)]
    assert rates == pytest.approx([0.01 * 0.8 ** (update // 7) for update in range(1, 17)])


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        ran(configured(), tmp_path, on_update=[stop_at(10)])
    time.sleep(1)  # files of one second and process are read by a counter's digits, of which 10 comes before 9
    ran(configured(), tmp_path)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    shown = {event.step: event.value for event in board.Scalars("validation/loss")}
    assert shown == pytest.approx({row["update"]: row["validation"]["loss"] for row in rows(tmp_path)})


def test_progress_is_told_after_each_update(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    ran(configured(updates=3), tmp_path, progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_run_leaves_the_generator_of_its_caller_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    ran(configured(updates=2), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_does_not_depend_on_the_mode_of_its_caller(tmp_path: Path) -> None:
    """Its gradients come back over 149 steps, so that early ones are denormal in the caller's own mode."""
    long = configured(task={"name": "adding", "length": 150, "held_out": 20}, updates=4)
    for name, flush in (("off", False), ("on", True)):
        with denormals_flushed(flush):
            record = ran(long, tmp_path / name)
            assert flushes_denormals() is flush
        assert record.hardware["denormals"].startswith("flushed to 0")
    assert same(tmp_path / "off", tmp_path / "on")


def test_a_seed_is_a_run_of_its_own(tmp_path: Path) -> None:
    ran(configured(updates=4), tmp_path / "0")
    ran(configured(updates=4), tmp_path / "again")
    ran(configured(updates=4, seed=1), tmp_path / "1")
    assert same(tmp_path / "0", tmp_path / "again")
    assert rows(tmp_path / "0") != rows(tmp_path / "1")


def test_divergence_is_a_record_with_a_diagnosis_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    def spoil(state: State) -> None:
        if state.update == 10:
            with torch.no_grad():
                state.model.get_parameter("readout.weight")[0, 0] = math.nan

    record = ran(configured(), tmp_path, on_update=[spoil])
    assert record.diverged is not None and record.diverged.startswith("update 11: the output is the first")
    assert load_checkpoint(tmp_path / "checkpoint.pt")["update"] == 8
    assert record.test is not None and record.best_update in (4, 8)
    assert RunRecord.load(tmp_path / "record.json") == record


def test_divergence_before_any_validation_has_no_metrics(tmp_path: Path) -> None:
    record = ran(configured(optimiser={"name": "sgd", "rate": 3e38}, clip=1e30), tmp_path)
    assert record.diverged is not None and "update 1" in record.diverged
    assert (record.best_update, record.best, record.last, record.test) == (None, None, None, None)


def test_a_validation_or_test_that_is_not_finite_is_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second validation, or the test, comes out infinite."""

    def broken(at: int) -> Any:
        calls = iter(range(1, 9))
        return lambda *_: {"loss": math.inf if next(calls) == at else 1.0}

    monkeypatch.setattr("isornn.training.validation.held_out_metrics", broken(2))
    record = ran(configured(), tmp_path / "validation")
    assert record.diverged == "update 8: the validation loss is inf" and record.best_update == 4
    assert load_checkpoint(tmp_path / "validation" / "checkpoint.pt")["update"] == 4
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules["isornn.training.run"], "held_out_metrics", broken(1))
    record = ran(configured(), tmp_path / "test")
    assert record.diverged == "the best weights' test loss is inf" and record.test is None


def test_what_is_no_record_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"record": "isornn run", "hash": "0"}')
    with pytest.raises(RecordError, match=r"record.json: not the record of a run of this version"):
        RunRecord.load(tmp_path / "record.json")
    (tmp_path / "record.json").write_text("[1]")
    with pytest.raises(RecordError, match=r"record.json: \[1\] is not allowed; it must be a table"):
        RunRecord.load(tmp_path / "record.json")


def test_a_record_that_somebody_edited_is_refused_by_field(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    ran(configured(updates=2, validate_every=2), tmp_path)
    whole = json.loads(file.read_text())
    for field, value, said in (
        ("best", 3, "best: 3 is not allowed; it must be a table or null"),
        ("test", {"loss": "high"}, "test.loss: 'high' is not allowed; it must be a number"),
        ("seconds", "x", "seconds: 'x' is not allowed; it must be a number"),
        ("baseline", "x", "baseline: 'x' is not allowed; it must be a number or null"),
        ("parameters", 0.5, "parameters: 0.5 is not allowed; it must be a whole number"),
        ("hardware", [], r"hardware: \[\] is not allowed; it must be a table"),
    ):
        file.write_text(json.dumps({**whole, field: value}))
        with pytest.raises(RecordError, match=f"record.json: {said}"):
            RunRecord.load(file)


# -- the loop by itself and through Fabric ----------------------------------------------------------------------------


def test_fabric_changes_no_bit_of_the_plain_loop(tmp_path: Path) -> None:
    losses: list[float] = []
    configuration = configured(start={"name": "standard"}, schedule={"name": "constant"})
    ran(configuration, tmp_path, on_update=[lambda state: losses.append(state.loss)])
    plain: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(configuration, problem_named("adding", {"length": 8, "held_out": 20}, 8))
        state = State(model, torch.optim.Adam(model.parameters(), 0.01))
        told = [lambda state: plain.append(state.loss)]
        train(state, iter(loader(Adding(8), 8)), 16, clip=0.5, on_update=told)
    assert plain == losses


def test_double_precision(tmp_path: Path) -> None:
    record = ran(configured(precision="64-true", updates=4), tmp_path)
    assert all(tensor.dtype == torch.float64 for tensor in load_file(tmp_path / "weights.safetensors").values())
    single = ran(configured(updates=4), tmp_path / "single")
    assert record.best is not None and single.best is not None
    assert 0 < abs(record.best["loss"] - single.best["loss"]) < 1e-4


def test_a_model_learns(tmp_path: Path) -> None:
    """Adding over 8 steps, to less than half the loss of the best answer without memory."""
    changes = {"model": {"name": "torch.nn.GRU", "hidden": 16}, "start": {"name": "chrono"}, "batch_size": 16}
    rate = {"optimiser": {"name": "adam", "rate": 0.03}, "schedule": {"name": "constant"}}
    record = ran(configured(updates=60, validate_every=60, **changes, **rate), tmp_path)
    assert record.test is not None and record.baseline is not None
    assert record.test["loss"] < record.baseline / 2


# -- models that carry their state ------------------------------------------------------------------------------------


def test_a_carried_state_goes_on_without_its_gradient_until_it_is_forgotten() -> None:
    torch.manual_seed(0)
    model = SequenceModel(torch.nn.LSTM(2, 4), 3, every_step=True, carries=True)
    x = torch.randn(6, 5, 2)
    whole = SequenceModel(model.recurrent, 3, every_step=True)
    whole.readout = model.readout
    halves = torch.cat([model(x[:3]), model(x[3:])])
    torch.testing.assert_close(halves, whole(x))
    assert not any(part.requires_grad for part in model.carried)
    model.forget()
    torch.testing.assert_close(model(x[:3]), whole(x[:3]))


def test_outputs_at_their_own_last_steps() -> None:
    torch.manual_seed(0)
    model = SequenceModel(torch.nn.GRU(2, 4), 3)
    x, lengths = torch.randn(6, 3, 2), torch.tensor([6, 2, 4])
    alone = torch.cat([model(x[:length, [k]]) for k, length in enumerate(lengths.tolist())])
    torch.testing.assert_close(model(x, lengths), alone)


def test_the_demo_loads_nothing_but_the_core() -> None:
    script = (
        "import sys, isornn.experiments.demo; print(*{'lightning_fabric', 'tensorboard', 'ray'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=with_paths())
    assert (done.stdout, done.stderr) == ("\n", "")


# -- devices and what they need ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adding", "copy"])
def test_shares_of_a_batch_have_the_gradient_of_the_whole(name: str) -> None:
    problem = problem_named(name, {"length": 8, "held_out": 2}, 8)
    model = build_model(configured(task={"name": name, "length": 8}), problem).eval()
    batch = next(iter(loader(problem.training, 8)))

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = torch.autograd.grad(task_loss(model(x), y), list(model.parameters()))
        return torch.cat([part.flatten() for part in found])

    shares = [gradient(*share(batch, problem.training, rank, 2)) for rank in (0, 1)]
    torch.testing.assert_close((shares[0] + shares[1]) / 2, gradient(*batch), rtol=1e-4, atol=1e-6)
    assert share(batch, problem.training, 0, 1)[0].equal(batch[0])


@pytest.mark.parametrize("missing", ["lightning_fabric", "tensorboard"])
def test_a_missing_extra_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(RunError, match=rf"{missing} is not installed: pip install 'isornn\[train\]'"):
        ran(configured(), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="device: 'cuda' is not allowed; 0 of 1 GPUs are there"):
        run(configured(), tmp_path, device="cuda")


def test_as_many_gpus_as_are_there_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(RunError, match="device: 'cuda' is not allowed; 3 of 4 GPUs are there"):
        run(configured(), tmp_path, device="cuda", devices=4)
    with pytest.raises(RunError, match="devices: 3 is not allowed; it must divide the batch size, 8"):
        run(configured(), tmp_path, device="cuda", devices=3)
