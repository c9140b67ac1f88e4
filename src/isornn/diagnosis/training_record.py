"""What a `Monitor` measured over a training, as arrays, and its file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from isornn.diagnosis.training_step import Gradients, StepMeasurement
from isornn.files import replacing
from isornn.formatting import counted, with_error_of
from isornn.records import RecordError

Array = np.ndarray
FORMAT = "isornn watch 1"
_TABLES = ("singular_values", "margins", "loss", "last")
_ARRAYS = ("lags", "xi", "xi_error")


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

    >>> import torch
    >>> from isornn.diagnosis import Monitor
    >>> rnn = torch.nn.GRU(3, 8)
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
        measured = f"{counted(len(self.iterations), 'iteration')} measured"
        return "\n".join([self.summary, *self.findings, *each, measured])

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
