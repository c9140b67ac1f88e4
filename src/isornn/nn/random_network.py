"""One network of finite width, drawn by a spec, as a function of its states: what simulation runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Gate, Spec, Values, drawn_parameters
from isornn.nn import draws
from isornn.nn.step import step

State = tuple[Tensor, ...]
Matrices = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class RandomNetwork:
    """Matrices and biases by gate; ``None`` is a matrix of zeros.

    Shapes: recurrent (N, N), inputs and previous (N, D), biases and the cell's own parameters (N,); all float64.

    >>> from isornn.cells import Vanilla
    >>> spec = Spec(Vanilla(), {"h": Gate(bias_mean=1.0)})
    >>> network = RandomNetwork.drawn(spec, width=2, input_size=3)
    >>> x = torch.zeros(3, dtype=torch.float64)
    >>> network.advance(x, x)(torch.zeros(2, dtype=torch.float64))
    (tensor([0.7616, 0.7616], dtype=torch.float64),)
    """

    spec: Spec
    width: int
    input_size: int
    recurrent: Matrices
    inputs: Matrices
    previous: Matrices
    biases: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]

    @staticmethod
    def drawn(spec: Spec, width: int, input_size: int, generator: torch.Generator | None = None) -> RandomNetwork:
        """A draw of all matrices and biases by ``spec``, which holds plain numbers."""
        biases = draws.biases((width,), spec, generator)
        parameters = drawn_parameters(spec.cell, width, generator)
        matrices = _matrices(spec, width, input_size, generator)
        return RandomNetwork(spec, width, input_size, *matrices, biases, parameters)

    def redrawn(self, generator: torch.Generator | None = None) -> RandomNetwork:
        """The untied network's next step: fresh matrices; fresh biases too unless ``spec.biases`` is ``"fixed"``.

        The cell's own parameters stay, and beside fixed biases the input matrices where it matters: where inputs have
        a mean or are correlated over time.
        """
        input = self.spec.input
        if self.spec.biases == "fixed" and not (input.is_centred and not input.remembers):
            return replace(self, recurrent=_recurrent(self.spec, self.width, generator))
        fresh = RandomNetwork.drawn(self.spec, self.width, self.input_size, generator)
        biases = self.biases if self.spec.biases == "fixed" else fresh.biases
        return replace(fresh, biases=biases, parameters=self.parameters)

    def advance(self, x: Tensor, before: Tensor) -> Callable[..., State]:
        """The step as a function of the states (N,) alone, given its input and the one before, (D,) each."""
        cell = self.spec.cell
        drive = {}
        for gate in cell.gates:
            total = self.biases[gate]
            for matrix, value in ((self.inputs[gate], x), (self.previous[gate], before)):
                total = total if matrix is None else total + matrix @ value
            drive[gate] = total

        def multiply(gate: str, r: Tensor) -> Tensor:
            matrix = self.recurrent[gate]
            return torch.zeros_like(r) if matrix is None else matrix @ r

        def advanced(*states: Tensor) -> State:
            named = Values(**dict(zip(cell.states, states, strict=True)))
            new, _ = step(cell, named, drive, multiply, x if cell.input_enters_pointwise else None, self.parameters)
            return tuple(getattr(new, name) for name in cell.states)

        return advanced


def _matrices(
    spec: Spec, width: int, input_size: int, generator: torch.Generator | None
) -> tuple[Matrices, Matrices, Matrices]:
    recurrent = _recurrent(spec, width, generator)
    shape = (width, input_size)
    return (
        recurrent,
        {name: _gaussian(shape, gate.input_var, generator) for name, gate in spec.gates.items()},
        {name: _gaussian(shape, gate.previous_input_var, generator) for name, gate in spec.gates.items()},
    )


def _recurrent(spec: Spec, width: int, generator: torch.Generator | None) -> Matrices:
    def drawn(gate: Gate) -> Tensor | None:
        if gate.ensemble == "gaussian" or float(gate.weight_var) == 0:
            return _gaussian((width, width), gate.weight_var, generator)
        return draws.recurrent((width, width), gate, generator)

    return {name: drawn(gate) for name, gate in spec.gates.items()}


def _gaussian(shape: tuple[int, int], variance: float | Tensor, generator: torch.Generator | None) -> Tensor | None:
    if float(variance) == 0:
        return None
    device = torch.device("cpu") if generator is None else generator.device
    # drawing takes most of a simulation's time; entries rounded to 24 bits are random enough, five times faster
    entries = torch.randn(*shape, generator=generator, dtype=torch.float32, device=device)
    return entries.double().mul_(math.sqrt(float(variance) / shape[1]))
