"""The demo: an nn.LSTM recalls a digit after noise; several starts are trained for the same number of updates each.

After Gilboa et al. 2019, figure 2.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import nn

from isornn.cells import Input
from isornn.experiments.demo_record import DemoResult, DemoRun, DemoSettings
from isornn.init import chrono_, critical_, standard_
from isornn.modes import denormal_mode, denormals_flushed
from isornn.records import RecordError, versions
from isornn.tasks import ImageSet, batches, held_out, load_digits
from isornn.training import SequenceModel, State, evaluate, train

LENGTH, UPDATES = 100, 300
RECORD = "demo.json"

Start = Callable[[nn.Module, int, torch.Generator], object]
Progress = Callable[[str, int, float], None]

STARTS: Mapping[str, Start] = {
    "torch": lambda module, length, generator: module,
    "standard": lambda module, length, generator: standard_(module, generator=generator),
    "chrono": lambda module, length, generator: chrono_(module, length, generator=generator),
    "critical": lambda module, length, generator: critical_(module, length, input=Input(), generator=generator),
}

# The streams of random numbers that a seed has.
_WEIGHTS, _START, _TRAINING, _TESTING = range(4)
# Of MNIST's 10,000 test images every tenth: enough to distinguish the starts, and as quick as the small digits.
_MOST_TESTED = 1000
_CLIP = 1.0


@denormals_flushed()
def run_demo(
    length: int = LENGTH,
    updates: int = UPDATES,
    seed: int = 0,
    out: Path = Path("demo"),
    data: Path | None = None,
    starts: Sequence[str] = tuple(STARTS),
    *,
    predicted: Mapping[str, float | None] | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> DemoResult:
    """Train ``nn.LSTM(D, 128)`` from each start on noise-padded digits and test it on held-out ones.

    All starts have the same batches in the same order and the same initial readout. After each start the record
    ``out/demo.json`` is written atomically, so finished starts survive an interrupt; a later call with the same
    settings reuses finished starts, if their initial weights are those that it would draw.
    A record with other settings in ``out`` is replaced.

    Args:
        length: T, the number of steps, above 2.
        updates: K, of each start.
        seed: from 0; on one machine with one number of threads the same seed gives the same losses.
        out: folder of the record, made if needed.
        data: folder with MNIST's IDX files; the package's digits if ``None``.
        starts: names out of ``STARTS``.
        predicted: by start, the theory's reach in steps; kept in the record for the figure.
        progress: called with (start, update, loss) after each update, and once for a start that is reused.
        command: kept in the record; the process's own if ``None``.

    Returns:
        The record.

    Raises:
        ValueError: an argument (names it), `DataError` for the data's files, `RecordError` for a ``demo.json`` in
            ``out`` that is something else.
        NonFiniteLoss: training diverged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     result = run_demo(length=5, updates=2, out=Path(out), starts=["torch"])
    >>> [(run.start, len(run.losses)) for run in result.runs]
    [('torch', 2)]
    """
    _check(length, updates, seed, starts)
    device = f"cpu, denormal numbers {denormal_mode()}"
    digits = _thinned(load_digits(data))
    settings = DemoSettings(length, updates, seed, digits.name, digits.source)
    file = out / RECORD
    finished = _finished(file, settings)
    result = DemoResult(
        settings, (), dict(predicted or {}), shlex.join(sys.argv) if command is None else command, versions(), device
    )
    for start in starts:
        model = _model(start, digits.pixels, settings)
        run = finished.get(start)
        if run is None or run.initial != _digest(model):
            run = _train(start, model, digits, settings, progress)
        elif progress is not None:
            progress(start, updates, run.losses[-1])
        result = replace(result, runs=(*result.runs, run))
        # What an earlier call finished stays in the file until this one has come to it.
        waiting = [old for name, old in finished.items() if name not in {run.start for run in result.runs}]
        replace(result, runs=(*result.runs, *waiting)).save(file)
    return result


def _check(length: int, updates: int, seed: int, starts: Sequence[str]) -> None:
    if length < 3:
        raise ValueError(f"length: {length} is not allowed; it must be a number of steps above 2")
    if updates < 1:
        raise ValueError(f"updates: {updates} is not allowed; it must be at least 1")
    if seed < 0:
        raise ValueError(f"seed: {seed} is not allowed; it must be at least 0")
    for start in starts:
        if start not in STARTS:
            raise ValueError(f"starts: {start!r} is not allowed; it must be one of {', '.join(STARTS)}")


def _thinned(digits: ImageSet) -> ImageSet:
    step = -(-len(digits.test_labels) // _MOST_TESTED)
    return replace(digits, test_images=digits.test_images[::step], test_labels=digits.test_labels[::step])


def _finished(file: Path, settings: DemoSettings) -> dict[str, DemoRun]:
    """The runs by start that an earlier call with these settings left."""
    if not file.exists():
        return {}
    try:
        record = DemoResult.load(file)
    except RecordError as error:
        raise RecordError(f"{error}; move it away or name another folder") from None
    return {run.start: run for run in record.runs} if record.settings == settings else {}


def _model(start: str, pixels: int, settings: DemoSettings) -> SequenceModel:
    # torch's own default draws from the global generator only.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_generator(settings.seed, _WEIGHTS).initial_seed())
        model = SequenceModel(nn.LSTM(pixels, settings.hidden), 10)
    STARTS[start](model.recurrent, settings.length, _generator(settings.seed, _START))
    return model


def _train(
    start: str, model: SequenceModel, digits: ImageSet, settings: DemoSettings, progress: Progress | None
) -> DemoRun:
    initial, begun = _digest(model), time.perf_counter()
    size = (settings.length, settings.batch_size)
    losses: list[float] = []

    def after_update(state: State) -> None:
        losses.append(state.loss)
        if progress is not None:
            progress(start, state.update, state.loss)

    state = State(model, torch.optim.Adam(model.parameters(), settings.learning_rate))
    training = batches(digits, *size, _generator(settings.seed, _TRAINING))
    train(state, training, settings.updates, clip=_CLIP, on_update=[after_update])
    noise = _generator(settings.seed, _TESTING)
    tests = [evaluate(model, held_out(digits, *size, noise)) for _ in range(settings.test_draws)]
    accuracies = tuple(test["accuracy"] for test in tests)
    error = mean(test["accuracy_error"] for test in tests)
    return DemoRun(start, tuple(losses), accuracies, time.perf_counter() - begun, initial, error)


def _generator(seed: int, stream: int) -> torch.Generator:
    """Independent streams for one seed."""
    (state,) = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state) >> 1)


def _digest(model: nn.Module) -> str:
    data = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(data).hexdigest()[:16]
