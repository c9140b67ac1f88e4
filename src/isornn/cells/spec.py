"""A cell with the hyper-parameters of its random initialisation: what every analysis starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from isornn.cells.bias_laws import BiasLaw
from isornn.cells.catalogue import cell_named, full_name
from isornn.cells.cell import Cell
from isornn.cells.definition import check_definition
from isornn.cells.errors import SpecError, suggested
from isornn.cells.laws import GATE_NUMBERS, INPUT_FIELDS, Gate, Input, Number, changed
from isornn.cells.spec_json import (
    ENSEMBLES,
    check_keys,
    gate_from_json,
    gate_to_json,
    input_from_json,
    input_to_json,
    options_to_json,
)
from isornn.files import read_json

LARGEST = 1e12


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
                raise SpecError(f"gates.{name}.ensemble", gate.ensemble, ENSEMBLES)
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
        gates = ", ".join(f"{name!r}: {gate!r}" for name, gate in self.gates.items() if changed(gate))
        parts = [repr(self.cell), f"{{{gates}}}"]
        if changed(self.input):
            parts.append(f"input={self.input!r}")
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
        return {
            "cell": full_name(self.cell),
            "input": input_to_json(self.input),
            "biases": self.biases,
            "options": options_to_json(self.cell, strict=strict),
            "gates": {name: gate_to_json(gate) for name, gate in self.gates.items()},
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
        check_keys("spec", data, ("cell", "input", "biases", "options", "gates"))
        if "cell" not in data:
            raise SpecError("cell", None, "a spec names its cell")
        options, gates = data.get("options", {}), data.get("gates", {})
        if not isinstance(options, dict):
            raise SpecError("options", options, "it must be an object")
        if not isinstance(gates, dict):
            raise SpecError("gates", gates, "it must be an object of gates by name")
        return Spec(
            cell=cell_named(data["cell"], options, allow=allow),
            gates={name: gate_from_json(f"gates.{name}", gate) for name, gate in gates.items()},
            input=input_from_json(data.get("input", {})),
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
            raise SpecError("SPEC.json", str(path), f"it must be a file that can be read ({error.strerror})") from None
        except ValueError as error:
            raise SpecError("SPEC.json", str(path), f"it must be JSON ({error})") from None
        return Spec.from_json(data, allow=allow)


def detached(spec: Spec) -> Spec:
    """The same spec with numbers that carry no gradient, for answers that have none.

    >>> from isornn.cells import Vanilla
    >>> number = torch.tensor(1.0, requires_grad=True)
    >>> detached(Spec(Vanilla(), {"h": Gate(weight_var=number)})).gates["h"].weight_var
    tensor(1.)
    """
    gates = {name: replace(gate, **_detached_fields(gate)) for name, gate in spec.gates.items()}
    return replace(spec, gates=gates, input=replace(spec.input, **_detached_fields(spec.input)))


def _detached_fields(record: Gate | Input) -> dict[str, Any]:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: value.detach() for name, value in values.items() if isinstance(value, Tensor)}


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
