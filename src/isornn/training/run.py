"""One run from its configuration to its record, in a folder from which it goes on after any interrupt.

The folder holds ``configuration.json``; ``metrics.jsonl``, a row per validation, and ``tensorboard/`` with the same
numbers; ``checkpoint.pt``; ``weights.safetensors``, those with the lowest validation loss; ``record.json`` at the end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from isornn.cells.errors import brief
from isornn.extras import require
from isornn.files import remove_begun
from isornn.interrupts import interrupts_kept
from isornn.modes import denormal_mode, denormals_flushed
from isornn.records import read_record, versions, write_record
from isornn.tasks import Task
from isornn.training.batches import held_out_metrics, training_batches
from isornn.training.building import build_model, build_optimiser, build_penalty, build_schedule, check_sizes
from isornn.training.configuration import Configuration
from isornn.training.data_mark import DataMark
from isornn.training.fields import ConfigurationError, flattened
from isornn.training.finite import NonFiniteLoss
from isornn.training.lock import locked
from isornn.training.loop import OnUpdate, State, train
from isornn.training.metrics import CHECKPOINT, Metrics, MetricsLog
from isornn.training.model import SequenceModel
from isornn.training.problems import Problem, problem_named
from isornn.training.record import RunRecord, hardware
from isornn.training.resuming import Journal, load_state
from isornn.training.validation import Validation, save_best

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Progress = Callable[[int, int], None]
Device = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "cuda")

CONFIGURATION, WEIGHTS, RECORD = "configuration.json", "weights.safetensors", "record.json"


class RunError(ValueError):
    """A folder that a run cannot use, or an extra that is not installed."""


@denormals_flushed()
def run(
    configuration: Configuration,
    folder: Path,
    *,
    data: Path | None = None,
    progress: Progress | None = None,
    on_update: Sequence[OnUpdate] = (),
    device: Device = "auto",
    devices: int = 1,
) -> RunRecord:
    """Train, validate and test what ``configuration`` says; go on where an earlier call in ``folder`` was interrupted.

    On the CPU, with one number of threads, an interrupted run and one that is not write the same ``metrics.jsonl``,
    byte for byte. A run whose loss, gradient or parameters become NaN or infinite ends there: its record says so in
    ``diverged``, and the last checkpoint is kept. Denormal numbers count as 0 (see `train`); ``hardware`` says so.

    Args:
        configuration: what to run.
        folder: of this run alone, made if needed; one process at a time may work in it. A run that is there with fewer
            ``updates`` and otherwise the same is extended: it goes on from its last checkpoint, as if it had been
            asked for this number from the start.
        data: folder with the task's files, for tasks that need some.
        progress: called with (updates done, of) after each update.
        on_update: called in turn with the `State` after each update, in the first process.
        device: ``"auto"`` takes a GPU where there is one.
        devices: how many processes, by PyTorch's distributed data parallel; each takes its share of every batch.

    Returns:
        The record; that in the folder, if the run has ended before.

    Raises:
        RunError: the folder holds another run, or one that cannot be extended; another process is at work in it;
            lightning-fabric or tensorboard is not installed.
        ValueError: what the task, the model or the start do not allow; names the field.
        CheckpointError: the checkpoint is damaged.
        DataError: a file of the task's.

    >>> import tempfile
    >>> given = {"task": {"name": "adding", "length": 5}, "model": {"name": "lstm", "hidden": 4}, "updates": 2}
    >>> configuration = Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": 1e-3}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = run(configuration, Path(folder))
    >>> record.length, record.diverged
    (5, None)
    """
    denormals = denormal_mode()  # before all else that torch computes, so that its threads flush too
    check_installed()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder), interrupts_kept() as interrupts:
        if _holds(folder, configuration) and (folder / RECORD).exists():
            return RunRecord.load(folder / RECORD)
        for name in (CONFIGURATION, CHECKPOINT, WEIGHTS, RECORD):
            remove_begun(folder / name)
        task = configuration.task
        with _refused_in("task"):
            problem = problem_named(task.name, task.options, configuration.batch_size, data)
        fabric = _fabric(configuration, device, devices)
        with _refused_in("model"):
            check_sizes(configuration, problem, fabric.device)
        callbacks = list(on_update)
        if progress is not None:
            callbacks.append(lambda state: progress(state.update, configuration.updates))
        if not fabric.is_global_zero:
            callbacks = []
        callbacks.append(lambda state: interrupts.check())
        # The model's start, dropout and the fresh weights of untied layers draw from torch's global generator.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(configuration.seed)
            return _run(configuration, folder, problem, fabric, callbacks, denormals)


def check_installed() -> None:
    """That the packages are there which a run needs and the library does not.

    Raises:
        RunError: names what is missing and how it is installed.
    """
    try:
        require("train")
    except ModuleNotFoundError as error:
        raise RunError(str(error)) from None


def first_process() -> bool:
    """Whether this is the process that writes, of those that share a run."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _run(
    configuration: Configuration,
    folder: Path,
    problem: Problem,
    fabric: Fabric,
    on_update: Sequence[OnUpdate],
    denormals: str,
) -> RunRecord:
    with _refused_in("model"):
        model = build_model(configuration, problem)
    forward = fabric.setup_module(model)
    optimizer = build_optimiser(configuration.optimiser, model)
    schedule = build_schedule(configuration.schedule, optimizer, configuration.updates)
    penalty = build_penalty(configuration.penalty, model)
    # After all that may refuse the configuration, so that a refused one does not keep the folder from the next.
    if fabric.is_global_zero:
        _claim(folder, configuration)
    plateau = schedule if isinstance(schedule, ReduceLROnPlateau) else None
    state = State(model, optimizer, None if plateau else schedule)
    data = DataMark.of(problem)
    journal = _taken_up(configuration, folder, data, state, plateau, fabric)
    diverged = None
    with _metrics_log(folder, journal, state, fabric) as log:
        files = folder / WEIGHTS, folder / CHECKPOINT
        validation = Validation(
            configuration, model, forward, fabric, problem.validation, data, journal, plateau, log, *files
        )
        size, seed = configuration.batch_size, configuration.seed
        try:
            train(
                state,
                training_batches(problem.training, size, seed, state.update, model, fabric),
                configuration.updates,
                clip=configuration.clip,
                penalty=penalty,
                on_update=[validation, *on_update],
                forward=forward,
                backward=fabric.backward,
            )
        except NonFiniteLoss as error:
            diverged = str(error)
    test, failed = _tested(journal, problem.test, size, model, forward, fabric)
    record = RunRecord(
        configuration=configuration,
        data=problem.training.described,
        length=problem.length,
        baseline=problem.training.baseline,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        best_update=journal.best_update,
        best=journal.best,
        last=journal.last,
        test=test,
        diverged=failed or diverged,
        seconds=validation.seconds(),
        device=str(fabric.device),
        hardware=hardware() | {"denormals": denormals},
        versions=versions() | {"lightning-fabric": _version_of_fabric()},
    )
    if fabric.is_global_zero:
        record.save(folder / RECORD)
    return record


@contextmanager
def _metrics_log(folder: Path, journal: Journal, state: State, fabric: Fabric) -> Iterator[MetricsLog | None]:
    """The log of the process that writes, until the block ends; ``None`` in the others."""
    if not fabric.is_global_zero:
        yield None
        return
    with closing(MetricsLog(folder, journal.metrics_bytes, journal.metrics_sha256, state.update)) as log:
        yield log


def _tested(
    journal: Journal, task: Task, size: int, model: SequenceModel, forward: Callable[..., Tensor], fabric: Fabric
) -> tuple[Metrics | None, str | None]:
    """The best weights' metrics on the test part, which the model then has; or why they are none."""
    if journal.best_weights is None:
        return None, None
    model.load_state_dict(journal.best_weights)
    test = held_out_metrics(task, size, model, forward, fabric)
    if not math.isfinite(test["loss"]):
        return None, f"the best weights' test loss is {test['loss']}"
    return test, None


def _taken_up(
    configuration: Configuration,
    folder: Path,
    data: DataMark,
    state: State,
    plateau: ReduceLROnPlateau | None,
    fabric: Fabric,
) -> Journal:
    """The results of the run so far, with ``state`` and ``plateau`` where its last checkpoint has them."""
    checkpoint = folder / CHECKPOINT
    if not checkpoint.exists():
        return Journal()
    journal = load_state(checkpoint, configuration.course, data, state, plateau, fabric.device)
    if journal.best_weights is not None and fabric.is_global_zero:
        save_best(folder / WEIGHTS, configuration.hash, journal)
    return journal


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The folder's lock, which the first of the processes that share a run holds for all."""
    if not first_process():
        yield
        return
    with locked(folder) as ours:
        if not ours:
            raise RunError(f"{folder}: another process is at work in it; let it end, or name another folder")
        yield


@contextmanager
def _refused_in(table: str) -> Iterator[None]:
    """What a task or a layer refuses as an error of a configuration's table."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # it names its field as a configuration or a spec has it
            raise
        raise RunError(f"{table}.{error}") from None


def _holds(folder: Path, configuration: Configuration) -> bool:
    """Whether the folder holds a run of this configuration; not if it holds none, or one that this one extends.

    Raises:
        RunError: it holds another run.
    """
    file = folder / CONFIGURATION
    if not file.exists():
        return False
    try:
        known = Configuration.from_mapping(read_record(file))
    except ConfigurationError as error:
        raise RunError(f"{file}: it is of another run, {error}; name another folder") from None
    before, ours = known.to_mapping(), configuration.to_mapping()
    other = [name for name in {**before, **ours} if before.get(name) != ours.get(name)]
    if not other:
        return True
    if other != ["updates"]:
        raise RunError(f"{folder}: holds a run with another {_differing(before, ours)}; name another folder")
    _check_extension(folder, known, configuration)
    return False


def _differing(before: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The fields that differ, with the value that the folder's run has and ours."""
    there, here = (dict(flattened(table)) for table in (before, ours))
    pairs = ((name, there.get(name), here.get(name)) for name in {**there, **here})
    return ", ".join(f"{name} ({_value(old)}, not {_value(new)})" for name, old, new in pairs if old != new)


def _value(value: Any) -> str:
    return "none" if value is None else brief(value)


def _claim(folder: Path, configuration: Configuration) -> None:
    """Say what the folder is for."""
    # In this order: whatever a kill leaves, the record is that of the configuration.
    (folder / RECORD).unlink(missing_ok=True)
    write_record(folder / CONFIGURATION, configuration.to_mapping())


def _check_extension(folder: Path, known: Configuration, longer: Configuration) -> None:
    """Refuse more updates where the run would not be the one that was asked for them from the start.

    Raises:
        RunError: says why.
    """
    where = f"{folder}: updates: {longer.updates} is not allowed; it holds a run of {known.updates}"
    if longer.updates < known.updates:
        raise RunError(f"{where}, which can be extended, not cut")
    if longer.schedule.name == "cosine":
        raise RunError(f"{where}, whose schedule, cosine, depends on their number; name another folder")
    if (folder / RECORD).exists() and known.updates % known.validate_every:
        raise RunError(
            f"{where}, which ended with a validation that no longer run has, as {known.validate_every} updates lie "
            "between two; name another folder"
        )


def _version_of_fabric() -> str:
    from lightning_fabric.__version__ import version  # its own word: the package lightning brings the module too

    return str(version)


def _fabric(configuration: Configuration, device: Device, devices: int) -> Fabric:
    if device == "cuda" and devices > torch.cuda.device_count():
        raise RunError(f"device: 'cuda' is not allowed; {torch.cuda.device_count()} of {devices} GPUs are there")
    if configuration.batch_size % devices:
        raise RunError(f"devices: {devices} is not allowed; it must divide the batch size, {configuration.batch_size}")
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator=device, devices=devices, precision=configuration.precision)  # type: ignore[arg-type]
    fabric.launch()
    return fabric
