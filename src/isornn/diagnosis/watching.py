"""What a monitor saw over a whole training: arrays over iteration and t, in memory and in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from isornn.diagnosis.sights import Gradients, Sight
from isornn.files import replacing
from isornn.records import RecordError

Array = np.ndarray
FORMAT = "isornn watch 1"
_TABLES = ("singular_values", "margins", "loss", "last")
_ARRAYS = ("lags", "xi", "xi_error")


@dataclass(frozen=True)
class WatchedLayer:
    """One layer and direction over I iterations. NaN stands where nothing was measured.

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
class Watch:
    """What a `Monitor` saw.

    Args:
        iterations: (I,), how many updates the network had had when it was looked at.
        layers: by place in the model.
        findings: what is wrong, in sentences that begin with the layer's name: denormal numbers and what they cost.

    >>> from tempfile import TemporaryDirectory
    >>> empty = Watch(np.zeros(0, dtype=int), ())
    >>> with TemporaryDirectory() as folder:
    ...     empty.save(Path(folder) / "watch.npz")
    ...     len(Watch.load(Path(folder) / "watch.npz").iterations)
    0
    """

    iterations: Array
    layers: tuple[WatchedLayer, ...]
    findings: tuple[str, ...] = ()

    @staticmethod
    def of(names: Sequence[str], seen: Mapping[int, Sequence[Sight]], findings: Sequence[str] = ()) -> Watch:
        """From what was seen of each place, by iteration."""
        places = [[sights[place] for sights in seen.values()] for place in range(len(names))]
        layers = tuple(_layer(name, sights) for name, sights in zip(names, places, strict=True))
        return Watch(np.array(list(seen), dtype=int), layers, tuple(findings))

    def layer(self, name: str) -> WatchedLayer:
        """The layer of that name.

        Raises:
            ValueError: there is none.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        allowed = ", ".join(layer.name for layer in self.layers)
        raise ValueError(f"layer: {name!r} is not allowed; watched were {allowed or 'none'}")

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
    def load(file: str | Path) -> Watch:
        """Read what `save` wrote; nothing in the file is executed.

        Raises:
            RecordError: the file is missing or not a watch.
        """
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as found:
                arrays = dict(found)
            about = json.loads(str(arrays.pop("about")))
            if about["format"] != FORMAT:
                raise RecordError(f"{file}: {about['format']} is not {FORMAT}")
            layers = tuple(_loaded(number, one, arrays) for number, one in enumerate(about["layers"]))
            return Watch(arrays["iterations"], layers, tuple(map(str, about.get("findings", ()))))
        except OSError as error:
            raise RecordError(f"{file}: not readable ({error.strerror or error})") from None
        except (EOFError, KeyError, TypeError, ValueError, BadZipFile) as error:
            raise error if isinstance(error, RecordError) else RecordError(f"{file}: not a watch ({error})") from None


def _loaded(number: int, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> WatchedLayer:
    tables: dict[str, dict[str, Array]] = {name: {} for name in _TABLES}
    for path, values in arrays.items():
        place, _, rest = path.partition("/")
        name, _, key = rest.partition("/")
        if place == str(number) and key:
            tables[name][key] = values
    plain = {name: arrays[f"{number}/{name}"] for name in _ARRAYS}
    return WatchedLayer(name=about["name"], reasons=tuple(about["reasons"]), **tables, **plain)  # type: ignore[arg-type]


def _layer(name: str, sights: Sequence[Sight]) -> WatchedLayer:
    gates = list(dict.fromkeys(gate for sight in sights for gate in sight.spectra))
    known = [sight.gradients for sight in sights]
    states = list(dict.fromkeys(state for found in known if found is not None for state in found.loss))
    columns = max((len(found.lags) for found in known if found is not None), default=0)
    spectra = {gate: [sight.spectra.get(gate, (math.nan,) * 5) for sight in sights] for gate in gates}
    rows = {gate: np.array([tuple(one) for one in found]) for gate, found in spectra.items()}
    return WatchedLayer(
        name=name,
        singular_values={gate: found[:, :4] for gate, found in rows.items()},
        margins={gate: found[:, 4] for gate, found in rows.items()},
        lags=_rows([None if found is None else found.lags for found in known], columns, -1),
        loss={s: _rows([None if one is None else one.loss[s] for one in known], columns, math.nan) for s in states},
        last={s: _rows([None if one is None else one.last[s] for one in known], columns, math.nan) for s in states},
        xi=np.array([_number(found) for found in known], dtype=float),
        xi_error=np.array([math.nan if f is None else _or_nan(f.xi.error()) for f in known], dtype=float),
        reasons=tuple(_reason(sight) for sight in sights),
    )


def _number(found: Gradients | None) -> float:
    return math.nan if found is None else _or_nan(found.xi.number())


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


def _reason(sight: Sight) -> str:
    return (sight.reason if sight.gradients is None else sight.gradients.xi.reason()) or ""


def _rows(rows: Sequence[Array | None], columns: int, blank: float) -> Array:
    whole = np.full((len(rows), columns), blank, dtype=int if blank == -1 else np.float64)
    for place, row in enumerate(rows):
        if row is not None:
            whole[place, : len(row)] = row
    return whole
