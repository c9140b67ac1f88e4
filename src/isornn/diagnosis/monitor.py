"""Gradients and singular values while a model trains, measured in the training step itself, and their record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
from torch import nn

from isornn.capture.calls import RecurrentModule, recurrent_modules
from isornn.cells.arguments import whole_number
from isornn.diagnosis.records import Denormals, layer_name
from isornn.diagnosis.training_step import Gradients, RecordedStep, StepMeasurement, StepRecorder, measure_step
from isornn.files import replacing
from isornn.formatting import with_error_of
from isornn.modes import flushes_denormals, usual_modes
from isornn.records import RecordError

Array = np.ndarray
FORMAT = "isornn watch 1"
_TABLES = ("singular_values", "margins", "loss", "last")
_ARRAYS = ("lags", "xi", "xi_error")

EVERY = 100
ROWS = 1024
# Where along a sequence the profile is logged, as parts of T.
_ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)

Log = Callable[[dict[str, float]], object]


@dataclass(frozen=True)
class LayerRecord:
    """One layer and direction over I iterations. NaN where nothing was measured.

    Args:
        name: ``encoder.rnn l1_reverse``.
        singular_values: by gate with a recurrent matrix, (I, 4): their mean, standard deviation, smallest and largest.
        margins: by gate, (I,): m where the singular values are kept in [1-m, 1+m], else infinite.
        lags: (I, C), steps from t to the sequence's end, T - t; -1 where the iteration has no such column. Sequences
            with more than 256 steps keep 256 of them, ever fewer from the end.
        loss: by state and for all together (``"all"``), (I, C): ln of the root mean square over sequences of
            ||dL/ds_t||, s_t the state after step t and L the iteration's own loss. -inf where it is exactly 0.
        last: the same of dL_T/ds_t: of the gradient that enters at the layer's own last step alone.
        xi, xi_error: (I,), time scale fitted to ``last``, ``||dL_T/ds_t||^2 ~ exp(-(T - t)/xi)``, and its standard
            error.
        reasons: why an iteration has no gradients or no xi; empty where it has both.

    >>> rnn = nn.GRU(3, 8)
    >>> with Monitor(rnn, every=1) as monitor:
    ...     rnn(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...     monitor.step()
    >>> layer = monitor.record.layers[0]
    >>> layer.name, layer.xi.shape
    ('GRU l0', (1,))
    """

    name: str
    singular_values: Mapping[str, Array]
    margins: Mapping[str, Array]
    lags: Array
    loss: Mapping[str, Array]
    last: Mapping[str, Array]
    xi: Array
    xi_error: Array
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class TrainingRecord:
    """What a `Monitor` measured: arrays over iteration and t.

    Args:
        iterations: (I,), how many updates had been made before the measured one.
        layers: in the model's order.
        findings: sentences that begin with the layer's name, about states that are kept with their graph or detached
            too soon, gradients that are not finite, and denormal numbers and their cost; each when it was first found.

    >>> from tempfile import TemporaryDirectory
    >>> empty = TrainingRecord(np.zeros(0, dtype=int), ())
    >>> with TemporaryDirectory() as folder:
    ...     empty.save(Path(folder) / "watch.npz")
    ...     len(TrainingRecord.load(Path(folder) / "watch.npz").iterations)
    0
    """

    iterations: Array
    layers: tuple[LayerRecord, ...]
    findings: tuple[str, ...] = ()

    @staticmethod
    def of(
        names: Sequence[str], rows: Mapping[int, Sequence[StepMeasurement]], findings: Sequence[str] = ()
    ) -> TrainingRecord:
        """From the measurements of each layer, by iteration."""
        layers = tuple(_layer(name, [row[at] for row in rows.values()]) for at, name in enumerate(names))
        return TrainingRecord(np.array(list(rows), dtype=int), layers, tuple(findings))

    @property
    def summary(self) -> str:
        """One line: the layer whose gradient fades soonest at the last measured iteration, and what it had at first.

        >>> TrainingRecord(np.zeros(0, dtype=int), ()).summary
        'nothing was measured'
        """
        if not self.layers or not len(self.iterations):
            return "nothing was measured"
        known = [layer for layer in self.layers if math.isfinite(layer.xi[-1])]
        if not known:
            reasons = (f"{layer.name}: {layer.reasons[-1]}" for layer in self.layers)
            return f"no time scale at iteration {self.iterations[-1]}: {'; '.join(reasons)}"
        shortest = min(known, key=lambda layer: layer.xi[-1])
        line = f"the gradient fades soonest in {shortest.name}: xi = {self._xi(shortest, -1)}"
        if len(self.iterations) > 1 and math.isfinite(shortest.xi[0]):
            line += f", {self._xi(shortest, 0)}"
        return f"{line}; sequences have up to {shortest.lags.max()} steps"

    def _xi(self, layer: LayerRecord, row: int) -> str:
        error = float(layer.xi_error[row])
        number = with_error_of(float(layer.xi[row]), math.inf if math.isnan(error) else error)
        return f"{number} steps at iteration {self.iterations[row]}"

    def __str__(self) -> str:
        """The summary, the findings, and a line for each layer."""
        rows = range(len(self.iterations))[-1:]
        each = [
            f"{layer.name}: "
            + (f"xi = {self._xi(layer, row)}" if math.isfinite(layer.xi[row]) else f"no xi: {layer.reasons[row]}")
            for layer in self.layers
            for row in rows
        ]
        return "\n".join([self.summary, *self.findings, *each, f"{len(self.iterations)} iterations measured"])

    def layer(self, name: str) -> LayerRecord:
        """The layer of that name.

        Raises:
            ValueError: there is none.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        allowed = ", ".join(layer.name for layer in self.layers)
        raise ValueError(f"layer: {name!r} is not allowed; recorded are {allowed or 'none'}")

    def save(self, file: str | Path) -> None:
        """Write a NumPy archive (.npz), atomically.

        Raises:
            ValueError: another ending.
            OSError: it cannot be written there.
        """
        path = Path(file)
        if path.suffix != ".npz":
            raise ValueError(f"file: {path.name} is not allowed; its ending is .npz")
        arrays = {"iterations": self.iterations}
        for number, layer in enumerate(self.layers):
            for name in _ARRAYS:
                arrays[f"{number}/{name}"] = getattr(layer, name)
            for name in _TABLES:
                arrays |= {f"{number}/{name}/{key}": values for key, values in getattr(layer, name).items()}
        about = [{"name": layer.name, "reasons": layer.reasons} for layer in self.layers]
        text = np.array(json.dumps({"format": FORMAT, "layers": about, "findings": self.findings}))
        with replacing(path) as new, new.open("wb") as stream:
            np.savez_compressed(stream, about=text, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(file: str | Path) -> TrainingRecord:
        """Read what `save` wrote; nothing in the file is executed.

        Raises:
            RecordError: the file is missing or not a training record.
        """
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as found:
                arrays = dict(found)
            about = json.loads(str(arrays.pop("about")))
            if about["format"] != FORMAT:
                raise RecordError(f"{file}: {about['format']} is not {FORMAT}")
            layers = tuple(_loaded(number, one, arrays) for number, one in enumerate(about["layers"]))
            return TrainingRecord(arrays["iterations"], layers, tuple(map(str, about.get("findings", ()))))
        except OSError as error:
            raise RecordError(f"{file}: not readable ({error.strerror or error})") from None
        except (EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
            raise (
                error if isinstance(error, RecordError) else RecordError(f"{file}: not a training record ({error})")
            ) from None


def _loaded(number: int, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> LayerRecord:
    tables: dict[str, dict[str, Array]] = {name: {} for name in _TABLES}
    for path, values in arrays.items():
        at, _, rest = path.partition("/")
        name, _, key = rest.partition("/")
        if at == str(number) and key:
            tables[name][key] = values
    plain = {name: arrays[f"{number}/{name}"] for name in _ARRAYS}
    return LayerRecord(name=about["name"], reasons=tuple(about["reasons"]), **tables, **plain)  # type: ignore[arg-type]


def _layer(name: str, steps: Sequence[StepMeasurement]) -> LayerRecord:
    gates = list(dict.fromkeys(gate for step in steps for gate in step.spectra))
    known = [step.gradients for step in steps]
    states = list(dict.fromkeys(state for found in known if found is not None for state in found.loss))
    columns = max((len(found.lags) for found in known if found is not None), default=0)
    spectra = {gate: [step.spectra.get(gate, (math.nan,) * 5) for step in steps] for gate in gates}
    rows = {gate: np.array([tuple(one) for one in found]) for gate, found in spectra.items()}
    return LayerRecord(
        name=name,
        singular_values={gate: found[:, :4] for gate, found in rows.items()},
        margins={gate: found[:, 4] for gate, found in rows.items()},
        lags=_rows([None if found is None else found.lags for found in known], columns, -1),
        loss={s: _rows([None if one is None else one.loss[s] for one in known], columns, math.nan) for s in states},
        last={s: _rows([None if one is None else one.last[s] for one in known], columns, math.nan) for s in states},
        xi=np.array([_number(found) for found in known], dtype=float),
        xi_error=np.array([math.nan if f is None else _or_nan(f.xi.error()) for f in known], dtype=float),
        reasons=tuple(_reason(step) for step in steps),
    )


def _number(found: Gradients | None) -> float:
    return math.nan if found is None else _or_nan(found.xi.number())


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _reason(step: StepMeasurement) -> str:
    return (step.reason if step.gradients is None else step.gradients.xi.reason()) or ""


def _rows(rows: Sequence[Array | None], columns: int, blank: float) -> Array:
    whole = np.full((len(rows), columns), blank, dtype=int if blank == -1 else np.float64)
    for at, row in enumerate(rows):
        if row is not None:
            whole[at, : len(row)] = row
    return whole


class Writer(Protocol):
    """TensorBoard's SummaryWriter, or whatever has its method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class Updated(Protocol):
    """Has the number of updates made, as `isornn.training.State`."""

    @property
    def update(self) -> int: ...


class Monitor:
    """Measures the recurrent layers of a model in training; `TrainingRecord` has one row for every measured update.

    The first update of the loop is measured, and then one in ``every``, by default that after update 100, 200, ... The
    recurrent modules have hooks during that training step only, and its results are the same to the bit as without
    them. Afterwards at most 16 sequences of its batch, the longest, are replayed in float64 with the
    weights of that step, and the gradient that autograd delivered to the layer's outputs is backpropagated through it.

    What is measured, where several passes happen between two updates:

    - several forward and backward passes (gradient accumulation): the first. What several losses send back through
      one forward pass before the next is added, as in the parameters' gradients.
    - passes without gradients (evaluation): never.
    - mixed precision: norms are of the loss that was backpropagated, with the scale of a GradScaler where there is
      one; xi does not depend on it. A scale that overflows leaves a row without gradients, and says so.
    - several calls of one module (a cell in the user's loop, a shared encoder): as `isornn.diagnosis.measure` has it.

    Where a measured gradient has denormal numbers, a short pass is timed once with and once without them; the cost
    is reported in ``record.findings``. A process that flushes them already has none.

    Copies and pickles of the model that are made within a measured step have no hooks, and those of a monitor have its
    record alone. A compiled model does
    not call hooks, and is refused: compile it without its recurrent part. A model that is sharded over processes is not
    supported, as no process has the weights.

    Args:
        model: with at least one recurrent layer.
        every: updates from one measurement to the next.
        log: called with one dict of numbers for each measurement, the iteration under ``"iteration"``; numbers that do
            not exist are left out.
        writer: TensorBoard's SummaryWriter, or whatever has its ``add_scalar(tag, value, step)``.

    Raises:
        ModuleError: the model has no recurrent layer.
        ValueError: every; a model that is compiled or cannot be copied.

    >>> model = nn.Sequential(nn.GRU(3, 8))
    >>> with Monitor(model, every=2) as monitor:
    ...     for _ in range(4):
    ...         model(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> monitor.record.iterations.tolist(), monitor.record.layers[0].singular_values["nh"].shape
    ([0, 2], (2, 4))
    """

    def __init__(
        self, model: nn.Module, every: int = EVERY, *, log: Log | None = None, writer: Writer | None = None
    ) -> None:
        every = whole_number("every", every, what="whole number of updates")
        modules = recurrent_modules(model)
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules()):
            raise ValueError("model: it is compiled, and a compiled model does not call the hooks that a monitor needs")
        self._recorder = StepRecorder(modules)
        self._modules = modules
        self._names = [name for module in modules for name in _names(module)]
        self._every, self._log, self._writer = every, log, writer
        self._rows: dict[int, list[StepMeasurement]] = {}
        self._denormals: dict[str, Denormals] = {}
        self._findings: dict[tuple[str, str], str] = {}
        self._kept_every = 1
        self._updates: int | None = None
        self._attached = self._closed = False
        self._attach()

    @property
    def record(self) -> TrainingRecord:
        """The rows so far. Of more than 1024 rows every second is dropped, and from then on every second kept."""
        findings = [f"{name}: {sentence}" for (name, _), sentence in self._findings.items()]
        findings += [f"{name}: {found.sentence}" for name, found in self._denormals.items() if found.costly]
        return TrainingRecord.of(self._names, self._rows, findings)

    def step(self, update: int | None = None) -> None:
        """To be called after each update of the model.

        Args:
            update: how many updates have been made, if training goes on where an earlier one ended; counted from 1
                where it is not given.
        """
        if self._closed:
            return
        known = 1 if update is None else update
        before = known - 1 if self._updates is None else self._updates
        self._updates = before + 1 if update is None else update
        if self._attached:
            self._measure(before)
        if self._updates // self._every > before // self._every:
            self._attach()

    def __call__(self, updated: Updated | int) -> None:
        """`step`, for `isornn.training.train(..., on_update=[monitor])`."""
        self.step(updated if isinstance(updated, int) else updated.update)

    def close(self) -> None:
        """Remove all hooks and measure no more; the record stays."""
        if not self._closed:
            self._recorder.detach()
        self._attached, self._closed = False, True

    def _attach(self) -> None:
        self._attached = True
        self._recorder.attach()

    def _measure(self, iteration: int) -> None:
        self._attached = False
        recorded = self._recorder.detach()
        flushes = flushes_denormals()
        with usual_modes():
            pairs = [(module, recorded[module.name]) for module in self._modules]
            found = [step for module, one in pairs for step in self._measured(module, one, flushes)]
        if (iteration // self._every) % self._kept_every == 0:
            self._rows[iteration] = found
        if len(self._rows) > ROWS:
            self._rows = dict(list(self._rows.items())[::2])
            self._kept_every *= 2
        self._report(iteration, found)

    def _measured(self, module: RecurrentModule, recorded: RecordedStep, flushes: bool) -> list[StepMeasurement]:
        name = _names(module)[0]
        found = measure_step(module, recorded, not flushes and name not in self._denormals)
        if found[0].denormals is not None:
            self._denormals[name] = found[0].denormals
        for own, step in zip(_names(module), found, strict=True):
            for kind, sentence in step.findings.items():
                self._findings.setdefault((own, kind), sentence)
        return found

    def _report(self, iteration: int, found: Sequence[StepMeasurement]) -> None:
        if self._log is None and self._writer is None:
            return
        numbers = {
            f"{name}/{key}": number
            for name, step in zip(self._names, found, strict=True)
            for key, number in _numbers(step)
        }
        if self._log is not None:
            self._log({"iteration": iteration, **numbers})
        if self._writer is not None:
            for tag, number in numbers.items():
                self._writer.add_scalar(tag, number, iteration)

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy or pickle: the rows, without the model, its hooks and the logs; it measures no more."""
        state = {name: value for name, value in vars(self).items() if name not in ("_recorder", "_log", "_writer")}
        return {**state, "_modules": [], "_attached": False, "_closed": True}

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _names(module: RecurrentModule) -> list[str]:
    return [layer_name(module.name, module.kind, layer.layer, layer.direction) for layer in module.layers]


def _numbers(step: StepMeasurement) -> Iterator[tuple[str, float]]:
    """What is logged of one layer: those numbers that exist."""
    if step.gradients is not None:  # first, because it is what a run is watched for
        xi, error = step.gradients.xi.number(), step.gradients.xi.error()
        if xi is not None and error is not None and math.isfinite(error):
            yield "xi", xi
            yield "xi_error", error
    for gate, spectrum in step.spectra.items():
        for name in ("mean", "std", "smallest", "largest"):
            yield f"singular_values/{gate}/{name}", getattr(spectrum, name)
    if step.denormals is not None:
        for name in ("gradients", "states", "seconds", "flushed_seconds"):
            yield f"denormals/{name}", getattr(step.denormals, name)
    if step.gradients is None:
        return
    lags = step.gradients.lags
    for kind, profile in (("loss", step.gradients.loss["all"]), ("last", step.gradients.last["all"])):
        for part in _ALONG:
            at = int(np.abs(lags - (1 - part) * lags[-1]).argmin())
            if np.isfinite(profile[at]):
                yield f"ln_gradient_norm/{kind}/t={part:g}T", float(profile[at])
