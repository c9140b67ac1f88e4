"""A cell with the hyper-parameters of its random initialisation: what every analysis starts from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from isornn.cells.arguments import is_number
from isornn.cells.bias_laws import BiasLaw, bias_law_from_json
from isornn.cells.catalogue import cell_named, full_name, importable, with_options
from isornn.cells.cell import Cell
from isornn.cells.definition import check_definition
from isornn.cells.errors import SpecError, suggested
from isornn.files import read_json

Number = float | Tensor
Ensemble = Literal["gaussian", "orthogonal", "identity"] | float
LARGEST = 1e12


@dataclass(frozen=True)
class Gate:
    """Random law of one pre-activation ``u = W r + U x_t + V x_(t-1) + b``.

    Variance convention: ``W_ij ~ N(0, weight_var / N)``, ``U_ij ~ N(0, input_var / D)``,
    ``V_ij ~ N(0, previous_input_var / D)``, ``b_i ~ N(bias_mean, bias_var)`` plus a draw of ``bias_law`` if there
    is one. Numbers may be tensors; they broadcast over leading axes and are analysed as a batch.

    Args:
        ensemble: of ``W / sqrt(weight_var)``: ``"gaussian"``, ``"orthogonal"`` (Haar), ``"identity"``, or a number m:
            singular values uniform in the margin [1-m, 1+m] between two Haar bases.

    >>> from isornn.cells import BiasLaw
    >>> forget = Gate(weight_var=1.0, input_var=1.0, bias_mean=1.0)
    >>> chrono = Gate(weight_var=1.0, bias_law=BiasLaw("chrono", 1.0, 499.0), ensemble="orthogonal")
    >>> forget.bias_mean, chrono.ensemble
    (1.0, 'orthogonal')
    """

    weight_var: Number = 0.0
    input_var: Number = 0.0
    previous_input_var: Number = 0.0
    bias_mean: Number = 0.0
    bias_var: Number = 0.0
    bias_law: BiasLaw | None = None
    ensemble: Ensemble = "gaussian"

    @property
    def recurrent_var(self) -> Number:
        """``N E[W_ij^2]``: weight_var, but for a margin m, whose singular values have mean square 1 + m^2/3."""
        if isinstance(self.ensemble, str):
            return self.weight_var
        return self.weight_var * (1 + self.ensemble**2 / 3)

    def __repr__(self) -> str:
        """The fields that are not their defaults; of an empirical law the number of its units.

        >>> Gate(weight_var=1.0, bias_law=BiasLaw("empirical", values=(0.5,) * 64))
        Gate(weight_var=1.0, bias_law=BiasLaw('empirical', 64 values))
        """
        return f"Gate({_changed(self)})"


@dataclass(frozen=True)
class Input:
    """Input sequences a, b of D features: ``x_t = m + z_t``, a constant m and Gaussian fluctuations z.

    ``E[z_t^2] = variance``, ``E[z_a z_b] = variance * correlation``, ``E[z_t z_(t+k)] = variance * autocorrelation^k``
    (an AR(1) process), independent over features; ``mean^2`` is the mean of m^2 over the features. So at one step
    ``E[x^2] = variance + mean^2``, ``E[x_a x_b] = variance * correlation + mean^2``.

    Args:
        mean: root mean square over the features of their means, the same in both sequences.
        autocorrelation: of successive steps, from 0 to below 1. It matters where the input matrices are the same at
            every step: specs that have one say ``biases="fixed"``.

    >>> import torch
    >>> Input(variance=2.0, mean=1.0).second_moment
    3.0
    """

    variance: Number = 1.0
    correlation: Number = 1.0
    mean: Number = 0.0
    autocorrelation: Number = 0.0

    @property
    def second_moment(self) -> Number:
        """``E[x^2]``, which the variance of ``U x`` over units rests on.

        >>> Input(variance=3.0, mean=2.0).second_moment
        7.0
        """
        return self.variance + self.mean**2

    @property
    def remembers(self) -> bool:
        """Whether inputs of different steps are correlated, in any spec of a batch."""
        return bool((torch.as_tensor(self.autocorrelation, device="cpu") != 0).any())

    @property
    def is_centred(self) -> bool:
        """Whether the features have mean 0, in every spec of a batch."""
        return not bool((torch.as_tensor(self.mean, device="cpu") != 0).any())

    def __repr__(self) -> str:
        """The fields that are not their defaults.

        >>> Input(variance=2.0)
        Input(variance=2.0)
        """
        return f"Input({_changed(self)})"

    @classmethod
    def of(cls, x: Tensor) -> Input:
        """The law with the mean and variance of a batch of inputs, features on the last axis.

        A tensor of one axis holds one feature. The variance is the mean over features of each one's own, so that
        ``second_moment`` is the mean square of all numbers.

        Raises:
            SpecError: no tensor of real numbers, none of them, or some that are not finite.

        >>> symbols = Input.of(torch.eye(10)[torch.arange(200) % 10])  # ten symbols, each in a tenth of the steps
        >>> round(symbols.mean, 6), round(symbols.variance, 6), round(symbols.second_moment, 6)
        (0.1, 0.09, 0.1)
        """
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or x.is_complex():
            raise SpecError("input", x, "it must be a dense tensor of real numbers, features on the last axis")
        values = x.detach().double()
        mean_square = values.square().mean()
        if not mean_square.isfinite():
            raise SpecError("input", x, "it must have numbers, and all of them must be finite")
        features = values.flatten(0, -2) if values.dim() > 1 else values.reshape(-1, 1)
        squared_mean = min(float(features.mean(0).square().mean()), float(mean_square))
        return cls(float(mean_square) - squared_mean, mean=math.sqrt(squared_mean))


def _changed(record: Gate | Input) -> str:
    """The fields of a record that are not their defaults, as keywords."""
    values = {f.name: (getattr(record, f.name), f.default) for f in fields(record)}
    return ", ".join(
        f"{name}={_short(value)}"
        for name, (value, default) in values.items()
        if isinstance(value, Tensor) or value != default
    )


def _short(value: object) -> str:
    if isinstance(value, BiasLaw) and value.values:
        return f"BiasLaw({value.kind!r}, {len(value.values)} values)"
    return repr(value)


INPUT_FIELDS = tuple(f.name for f in fields(Input))
GATE_NUMBERS = ("weight_var", "input_var", "previous_input_var", "bias_mean", "bias_var")


def is_number_path(spec: Spec, path: str) -> bool:
    """Whether ``path`` names a number of ``spec``: ``"input.variance"``, ``"f.bias_mean"``.

    >>> from isornn.cells import Vanilla
    >>> [is_number_path(Spec(Vanilla()), path) for path in ("h.weight_var", "input.mean", "h.ensemble", "f.bias_mean")]
    [True, True, False, False]
    """
    head, _, name = path.partition(".")
    return (head == "input" and name in INPUT_FIELDS) or (head in spec.gates and name in GATE_NUMBERS)


@dataclass(frozen=True)
class Spec:
    """A cell, the law of each of its gates, the input, and how often biases are drawn.

    Args:
        cell: the cell.
        gates: law by gate name, read-only; gates left out have all numbers 0.
        input: law of the input sequences.
        biases: ``"redrawn"`` each step (the papers) or ``"fixed"`` (drawn once, as in a real network).

    Raises:
        SpecError: unknown gate, negative variance, ``|correlation| > 1``, a variance of something the gate does
            not read, NaN, infinity; names the field, the value and what is allowed.
        OptionError, CellError: ``cell`` is no cell, or one whose class attributes have a mistake.

    >>> from isornn.cells import LSTM, Gate, Spec
    >>> spec = Spec(LSTM(), {"f": Gate(weight_var=1.0, bias_mean=1.0)})
    >>> spec.replace("f.bias_mean", 5.0).gates["f"].bias_mean
    5.0
    >>> Spec(LSTM(), {"q": Gate()})
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: gates.q: 'q' is not allowed; lstm has i, f, g, o
    """

    cell: Cell
    gates: Mapping[str, Gate] = field(default_factory=dict)
    input: Input = field(default_factory=Input)
    biases: Literal["redrawn", "fixed"] = "redrawn"

    def __post_init__(self) -> None:
        check_definition(self.cell)
        if not isinstance(self.gates, Mapping):
            raise SpecError("gates", self.gates, 'it must be a mapping such as {"f": Gate(weight_var=1.0)}')
        for name in self.gates:
            if name not in self.cell.gates:
                raise SpecError(f"gates.{name}", name, f"{self.cell.name} has {', '.join(self.cell.gates)}")
        gates = {name: self.gates.get(name, Gate()) for name in self.cell.gates}
        object.__setattr__(self, "gates", MappingProxyType(gates))
        for name, gate in self.gates.items():
            self._check_gate(name, gate)
        self._check_empirical()
        if self.biases not in ("redrawn", "fixed"):
            raise SpecError("biases", self.biases, 'it must be "redrawn" or "fixed"')
        self._check_input()
        self._check_shapes()

    def __reduce__(self) -> tuple[type[Spec], tuple[Any, ...]]:
        """By its arguments: a read-only mapping is neither pickled nor copied."""
        return type(self), (self.cell, dict(self.gates), self.input, self.biases)

    def _check_shapes(self) -> None:
        numbers = {f"gates.{gate}.{n}": getattr(law, n) for gate, law in self.gates.items() for n in GATE_NUMBERS}
        numbers |= {f"input.{name}": getattr(self.input, name) for name in INPUT_FIELDS}
        shapes = {where: tuple(value.shape) for where, value in numbers.items() if isinstance(value, Tensor)}
        try:
            np.broadcast_shapes(*shapes.values())
        except ValueError:
            found = ", ".join(f"{where} {shape}" for where, shape in shapes.items() if shape)
            raise SpecError("spec", found, "these shapes must broadcast together") from None

    def _check_input(self) -> None:
        if not isinstance(self.input, Input):
            raise SpecError("input", self.input, "it must be an isornn.Input; Input.of(batch) makes one of a tensor")
        _check_number("input.variance", self.input.variance, 0.0, LARGEST)
        _check_number("input.correlation", self.input.correlation, -1.0, 1.0)
        _check_number("input.mean", self.input.mean, 0.0, math.sqrt(LARGEST))
        given = self.input.autocorrelation
        _check_number("input.autocorrelation", given, 0.0, 1.0)
        if bool((torch.as_tensor(given, dtype=torch.float64, device="cpu") == 1).any()):
            raise SpecError("input.autocorrelation", given, "it must be below 1: what never changes is a mean")
        if self.biases == "redrawn" and self.input.remembers:
            allowed = (
                'with biases "redrawn" the input matrices are drawn afresh at every step too, so that inputs of '
                'different steps are independent to the network: set biases="fixed"'
            )
            raise SpecError("input.autocorrelation", given, allowed)

    def _check_gate(self, name: str, gate: Gate) -> None:
        if not isinstance(gate, Gate):
            raise SpecError(f"gates.{name}", gate, "it must be an isornn.Gate, as in Gate(weight_var=1.0)")
        for number in GATE_NUMBERS:
            low = -LARGEST if number == "bias_mean" else 0.0
            _check_number(f"gates.{name}.{number}", getattr(gate, number), low, LARGEST)
        reads = self.cell.gates[name]
        for number, read in (
            ("weight_var", reads.state),
            ("input_var", reads.input),
            ("previous_input_var", reads.previous_input),
        ):
            value = getattr(gate, number)
            if not read and bool((torch.as_tensor(value, device="cpu") != 0).any()):
                raise SpecError(
                    f"gates.{name}.{number}", value, f"it must be 0: {self.cell.name}'s {name} does not read that"
                )
        if not (gate.bias_law is None or isinstance(gate.bias_law, BiasLaw)):
            raise SpecError(f"gates.{name}.bias_law", gate.bias_law, "it must be an isornn.cells.BiasLaw or None")
        if isinstance(gate.ensemble, str):
            if gate.ensemble not in ("gaussian", "orthogonal", "identity"):
                raise SpecError(f"gates.{name}.ensemble", gate.ensemble, _ENSEMBLES)
        else:
            _check_number(f"gates.{name}.ensemble.margin", gate.ensemble, 0.0, LARGEST)

    def _check_empirical(self) -> None:
        """Empirical laws list the same units and are not combined with other laws."""
        laws = {name: gate.bias_law for name, gate in self.gates.items() if gate.bias_law is not None}
        counts = {name: len(law.values) for name, law in laws.items()}  # 0 of the laws in closed form
        odd = next((name for name in laws if counts[name] != max(counts.values())), None)
        if odd is not None:
            allowed = "where one gate has an empirical law, every law is one, of as many units"
            raise SpecError(f"gates.{odd}.bias_law", laws[odd], allowed)

    def replace(self, path: str, value: Any) -> Spec:
        """The same spec with one field changed: ``"biases"``, ``"input.variance"``, ``"f.bias_mean"``.

        Raises:
            SpecError: no such field.
        """
        head, _, name = path.partition(".")
        if path == "biases":
            return replace(self, biases=value)
        if head == "input" and name in INPUT_FIELDS:
            return replace(self, input=replace(self.input, **{name: value}))
        if head in self.gates and name in {f.name for f in fields(Gate)}:
            return replace(self, gates={**self.gates, head: replace(self.gates[head], **{name: value})})
        known = [f"input.{field}" for field in INPUT_FIELDS]
        known += [f"{gate}.{field.name}" for gate in self.gates for field in fields(Gate)]
        allowed = f"fields are biases, input.*, and GATE.FIELD with GATE of {', '.join(self.gates)}"
        raise SpecError(path, value, suggested(path, ["biases", *known]) + allowed)

    def __repr__(self) -> str:
        """Without what is as it would be anyway.

        >>> from isornn.cells import LSTM
        >>> Spec(LSTM(), {"f": Gate(weight_var=1.0, bias_mean=5.0)}, biases="fixed")
        Spec(LSTM(gate='sigmoid'), {'f': Gate(weight_var=1.0, bias_mean=5.0)}, biases='fixed')
        """
        gates = ", ".join(f"{name!r}: {gate!r}" for name, gate in self.gates.items() if _changed(gate))
        parts = [repr(self.cell), f"{{{gates}}}"]
        if _changed(self.input):
            parts.append(f"input=Input({_changed(self.input)})")
        if self.biases != "redrawn":
            parts.append(f"biases={self.biases!r}")
        return f"Spec({', '.join(parts)})"

    @property
    def batch_shape(self) -> torch.Size:
        """Leading axes of the hyper-parameters, broadcast together; empty for plain numbers."""
        numbers = [getattr(g, n) for g in self.gates.values() for n in GATE_NUMBERS]
        numbers += [getattr(self.input, name) for name in INPUT_FIELDS]
        shapes = [torch.as_tensor(number).shape for number in numbers]
        return torch.Size(np.broadcast_shapes(*shapes))  # torch's own loads sympy, half a second

    def to_json(self, *, strict: bool = True) -> dict[str, Any]:
        """The object that a spec file holds. Only for plain numbers, not batches.

        A cell that is not in the catalogue goes by ``package.module:Class``.

        Args:
            strict: refuse a cell that cannot be read back; a record that only describes does without.

        Raises:
            SpecError: a class that cannot be imported by name, as one that is defined in a function or in
                ``__main__``; options that JSON does not hold.
        """
        options = {
            option.name: getattr(self.cell, option.name)
            for option in fields(self.cell)
            if option.init and option.default != getattr(self.cell, option.name)
        }
        if strict:
            _check_readable(self.cell, options)
        return {
            "cell": full_name(self.cell),
            "input": _input_to_json(self.input),
            "biases": self.biases,
            "options": {name: listed(value) for name, value in options.items()},
            "gates": {name: _gate_to_json(gate) for name, gate in self.gates.items()},
        }

    @staticmethod
    def from_json(data: Any, *, allow: Sequence[str] = ()) -> Spec:
        """Read the object that a spec file holds; absent gates and numbers are 0.

        Args:
            allow: packages that a cell's name may have imported; see `cell_named`.

        Raises:
            SpecError, OptionError: anything unknown, missing or outside its range; a module that is not allowed.
            CellError: the cell's definition has a mistake.
        """
        _check_keys("spec", data, ("cell", "input", "biases", "options", "gates"))
        if "cell" not in data:
            raise SpecError("cell", None, "a spec names its cell")
        options, gates, given = data.get("options", {}), data.get("gates", {}), data.get("input", {})
        if not isinstance(options, dict):
            raise SpecError("options", options, "it must be an object")
        if not isinstance(gates, dict):
            raise SpecError("gates", gates, "it must be an object of gates by name")
        _check_keys("input", given, INPUT_FIELDS)
        for name, value in given.items():
            _check_plain(f"input.{name}", value)
        return Spec(
            cell=cell_named(data["cell"], options, allow=allow),
            gates={name: _gate_from_json(f"gates.{name}", gate) for name, gate in gates.items()},
            input=Input(**given),
            biases=data.get("biases", "redrawn"),
        )

    @staticmethod
    def load(path: str | Path, *, allow: Sequence[str] = ()) -> Spec:
        """Read a spec file.

        Args:
            allow: as `from_json` has it.

        Raises:
            SpecError, OptionError: the file is missing, is not JSON, or is not a spec.
            CellError: the cell's definition has a mistake.
        """
        try:
            data = read_json(Path(path))
        except OSError as error:
            raise SpecError("file", str(path), f"it must be readable ({error.strerror})") from None
        except ValueError as error:
            raise SpecError("file", str(path), f"it must be JSON ({error})") from None
        return Spec.from_json(data, allow=allow)


def listed(value: Any) -> Any:
    """An option as JSON has it: tuples become lists.

    >>> listed((1, (2, 3)))
    [1, [2, 3]]
    """
    return [listed(part) for part in value] if isinstance(value, tuple) else value


def _check_readable(cell: Cell, options: Mapping[str, Any]) -> None:
    if not importable(type(cell)):
        allowed = "a cell in a file is imported by module and name: define its class at the top of a module"
        raise SpecError("cell", full_name(cell), allowed)
    try:
        again = json.loads(json.dumps({name: listed(value) for name, value in options.items()}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError("options", dict(options), f"in a file they are values of JSON ({error})") from None
    if with_options(type(cell), again) != cell:
        raise SpecError("options", dict(options), "in a file they are values that JSON gives back")


def check_spec(spec: object) -> None:
    """Refuse what is no `Spec`, and name the way to one.

    Raises:
        SpecError: as said.
    """
    if not isinstance(spec, Spec):
        allowed = (
            "it must be an isornn.Spec, as isornn.init.spec_of(module) reads one and isornn.Spec(cell, gates) makes one"
        )
        raise SpecError("spec", spec, allowed)


_ENSEMBLES = '"gaussian", "orthogonal", "identity" or {"margin": m} with m >= 0'


def _input_to_json(input: Input) -> dict[str, float]:
    """Mean and autocorrelation only where they are not 0."""
    data = {name: float(getattr(input, name)) for name in INPUT_FIELDS}
    return {name: value for name, value in data.items() if value or name in ("variance", "correlation")}


def _gate_to_json(gate: Gate) -> dict[str, Any]:
    data: dict[str, Any] = {name: float(getattr(gate, name)) for name in GATE_NUMBERS}
    if gate.bias_law is not None:
        data["bias_law"] = gate.bias_law.to_json()
    if gate.ensemble != "gaussian":
        data["ensemble"] = gate.ensemble if isinstance(gate.ensemble, str) else {"margin": gate.ensemble}
    return data


def _gate_from_json(where: str, data: Any) -> Gate:
    _check_keys(where, data, tuple(f.name for f in fields(Gate)))
    values = dict(data)
    for name in GATE_NUMBERS:
        if name in values:
            _check_plain(f"{where}.{name}", values[name])
    if "bias_law" in values:
        try:
            values["bias_law"] = bias_law_from_json(values["bias_law"])
        except ValueError as error:
            raise SpecError(f"{where}.bias_law", values["bias_law"], f"it must be {error}") from None
    ensemble = values.get("ensemble", "gaussian")
    if isinstance(ensemble, dict) and list(ensemble) == ["margin"]:
        _check_plain(f"{where}.ensemble.margin", ensemble["margin"])
        values["ensemble"] = float(ensemble["margin"])
    elif not isinstance(ensemble, str):
        raise SpecError(f"{where}.ensemble", ensemble, f"it must be {_ENSEMBLES}")
    return Gate(**values)


def _check_keys(where: str, data: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(data, dict):
        raise SpecError(where, data, "it must be an object")
    for key in data:
        if key not in allowed:
            field = f"{where}.{key}" if where != "spec" else key
            raise SpecError(field, data[key], f"{suggested(key, allowed)}fields are {', '.join(allowed)}")


def _check_plain(where: str, value: Any) -> None:
    if not is_number(value):
        raise SpecError(where, value, "it must be a number")


def _as_float(value: SupportsFloat) -> float:
    """Infinite where it is a whole number beyond all floats, not a number where it is an array of several."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except TypeError:
        return math.nan


def _check_number(where: str, value: Number, low: float, high: float) -> None:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or not value.numel():
            raise SpecError(where, value, "it must be a dense tensor of at least one number")
        inside = bool(((value >= low) & (value <= high)).all())
    else:
        inside = isinstance(value, SupportsFloat) and low <= _as_float(value) <= high
    if not inside:
        raise SpecError(where, value, f"it must be a finite number from {low:g} to {high:g}")


__all__ = ["BiasLaw", "Ensemble", "Gate", "Input", "Spec"]
