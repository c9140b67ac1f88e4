"""One run from its configuration to its record, in a folder from which it goes on after any interrupt.

The folder holds ``configuration.json``; ``metrics.jsonl``, a row per validation, and ``tensorboard/`` with the same
numbers; ``checkpoint.pt``; ``weights.safetensors``, those with the lowest validation loss; ``record.json`` at the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from isornn.files import replacing
from isornn.records import read_record, versions, write_record
from isornn.tasks import RunningText, Task, loader, one_pass
from isornn.training.building import build_model, build_optimiser, build_schedule
from isornn.training.configuration import Configuration
from isornn.training.evaluation import Batch, evaluate
from isornn.training.finite import NonFiniteLoss
from isornn.training.loop import OnUpdate, State, train
from isornn.training.metrics import MetricsLog
from isornn.training.model import SequenceModel
from isornn.training.problems import Problem, problem_named
from isornn.training.record import RunRecord, hardware
from isornn.training.resuming import Journal, load_state, save_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Progress = Callable[[int, int], None]
Device = Literal["auto", "cpu", "cuda"]

CONFIGURATION, CHECKPOINT, WEIGHTS, RECORD = "configuration.json", "checkpoint.pt", "weights.safetensors", "record.json"


class RunError(ValueError):
    """A folder that a run cannot use, or an extra that is not installed."""


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
    ``diverged``, and the last checkpoint is kept.

    Args:
        configuration: what to run.
        folder: of this run alone, made if needed. Two processes in one folder at once are not kept apart.
        data: folder with the task's files, for tasks that need some.
        progress: called with (updates done, of) after each update.
        on_update: called in turn with the `State` after each update.
        device: ``"auto"`` takes a GPU where there is one.
        devices: how many processes, by PyTorch's distributed data parallel; each takes its share of every batch.

    Returns:
        The record; that in the folder, if the run has ended before.

    Raises:
        RunError: the folder holds another run; lightning-fabric or tensorboard is not installed.
        ValueError: what the task, the model or the start do not allow; names the field.
        CheckpointError: the checkpoint is damaged.
        DataError: a file of the task's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, configuration)
    if (folder / RECORD).exists():
        return RunRecord.load(folder / RECORD)
    _tidy(folder)
    problem = problem_named(configuration.task.name, configuration.task.options, configuration.batch_size, data)
    fabric = _fabric(configuration, device, devices)
    told = list(on_update)
    if progress is not None:
        told.append(lambda state: progress(state.update, configuration.updates))
    # The model's start, dropout and the fresh weights of untied layers draw from torch's global generator.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(configuration.seed)
        return _run(configuration, folder, problem, fabric, told)


def _run(
    configuration: Configuration, folder: Path, problem: Problem, fabric: Fabric, on_update: Sequence[OnUpdate]
) -> RunRecord:
    begun = time.perf_counter()
    model = build_model(configuration, problem)
    forward = fabric.setup_module(model)
    optimizer = build_optimiser(configuration.optimiser, model)
    scheduler = build_schedule(configuration.schedule, optimizer, configuration.updates)
    plateau = scheduler if isinstance(scheduler, ReduceLROnPlateau) else None
    state = State(model, optimizer, None if plateau else scheduler)
    journal = Journal()
    if (folder / CHECKPOINT).exists():
        journal = load_state(folder / CHECKPOINT, configuration.hash, state, plateau, fabric.device)
    earlier = journal.seconds
    losses: list[float] = []
    norms: list[float] = []

    def collect(state: State) -> None:
        losses.append(state.loss)
        norms.append(state.gradient_norm)

    def validate(state: State) -> None:
        if state.update % configuration.validate_every and state.update != configuration.updates:
            return
        validation = _evaluated(model, forward, problem.validation, configuration, fabric)
        if not math.isfinite(validation["loss"]):
            raise NonFiniteLoss(state.update, "validation loss", f"the validation loss is {validation['loss']}")
        training = {
            "loss": _mean_over_processes(losses, fabric),
            "gradient_norm": max(norms),
            "rate": float(optimizer.param_groups[0]["lr"]),
        }
        losses.clear()
        norms.clear()
        if plateau is not None:
            plateau.step(validation["loss"])
        journal.last = validation
        improved = journal.best is None or validation["loss"] < journal.best["loss"]
        if improved:
            journal.best_update, journal.best = state.update, validation
        if log is not None:
            log.write(state.update, training=training, validation=validation)
            if improved:
                _save_weights(folder / WEIGHTS, model, configuration.hash, state.update)
            journal.metrics_bytes, journal.seconds = log.position, earlier + time.perf_counter() - begun
            save_state(folder / CHECKPOINT, configuration.hash, state, plateau, journal)

    diverged = None
    log = MetricsLog(folder, journal.metrics_bytes, state.update) if fabric.is_global_zero else None
    try:
        train(
            state,
            _batches(problem.training, configuration, state.update, model, fabric),
            configuration.updates,
            clip=configuration.clip,
            on_update=[collect, validate, *on_update],
            forward=forward,
            backward=fabric.backward,
        )
    except NonFiniteLoss as error:
        diverged = str(error)
    finally:
        if log is not None:
            log.close()

    test = None
    if journal.best is not None:
        fabric.barrier()
        model.load_state_dict(load_file(folder / WEIGHTS))
        test = _evaluated(model, forward, problem.test, configuration, fabric)
    record = RunRecord(
        configuration=configuration,
        data=f"{problem.training.name}; {problem.training.source}",
        length=problem.length,
        baseline=problem.training.baseline,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        best_update=journal.best_update,
        best=journal.best,
        last=journal.last,
        test=test,
        diverged=diverged,
        seconds=earlier + time.perf_counter() - begun,
        device=str(fabric.device),
        hardware=hardware(),
        versions=versions(),
    )
    if fabric.is_global_zero:
        record.save(folder / RECORD)
    return record


def _claim(folder: Path, configuration: Configuration) -> None:
    """Say what the folder is for, and refuse one that is for something else."""
    file = folder / CONFIGURATION
    if not file.exists():
        write_record(file, configuration.to_mapping())
        return
    known = Configuration.from_mapping(read_record(file)).to_mapping()
    ours = configuration.to_mapping()
    other = [name for name in {**known, **ours} if known.get(name) != ours.get(name)]
    if other:
        raise RunError(f"{folder}: holds a run with another {', '.join(other)}; name another folder")


def _tidy(folder: Path) -> None:
    """Remove what a killed process had begun to write."""
    for name in (CHECKPOINT, WEIGHTS):
        for begun in folder.glob(f".*{Path(name).suffix}"):
            begun.unlink()


def _fabric(configuration: Configuration, device: Device, devices: int) -> Fabric:
    try:
        from lightning_fabric import Fabric
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401
    except ModuleNotFoundError as error:
        raise RunError(f"{error.name} is not installed; pip install 'isornn[train]'") from None
    if configuration.batch_size % devices:
        raise RunError(f"devices: {devices} is not allowed; it divides the batch size, {configuration.batch_size}")
    fabric = Fabric(accelerator=device, devices=devices, precision=configuration.precision)  # type: ignore[arg-type]
    fabric.launch()
    return fabric


def _batches(
    task: Task, configuration: Configuration, start: int, model: SequenceModel, fabric: Fabric
) -> Iterator[Batch]:
    """Of training, from number ``start``: this process's share of each."""
    stream = loader(task, configuration.batch_size, configuration.seed, start=start)
    for k, batch in enumerate(stream, start):
        if isinstance(task, RunningText) and task.new_pass(k):
            model.forget()
        yield fabric.to_device(_share(batch, task, fabric.global_rank, fabric.world_size))


def _share(batch: Batch, task: Task, rank: int, processes: int) -> Batch:
    if processes == 1:
        return batch
    x, y, *lengths = batch
    mine = slice(rank, None, processes)
    return (x[:, mine], y[:, mine] if task.per_step else y[mine], *(each[mine] for each in lengths))


def _evaluated(
    model: SequenceModel, forward: Callable[..., Tensor], task: Task, configuration: Configuration, fabric: Fabric
) -> dict[str, float]:
    """Metrics on all items of a held-out part; the state that training carries stays out of it."""
    carried = model.carried
    model.forget()
    batches = one_pass(task, task.columns or configuration.batch_size)
    told = evaluate(model, map(fabric.to_device, batches), forward)
    model.carried = carried
    return told


def _mean_over_processes(losses: Sequence[float], fabric: Fabric) -> float:
    mean: Any = fabric.all_reduce(torch.tensor(sum(losses) / len(losses), dtype=torch.float64), reduce_op="mean")
    return float(mean)


def _save_weights(file: Path, model: SequenceModel, run: str, update: int) -> None:
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(file) as new:
        save_file(tensors, new, metadata={"isornn": f"run {run}, update {update}"})
