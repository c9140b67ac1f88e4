"""Sample paths of units of an infinitely wide network whose weights and biases are drawn once.

At infinite width the pre-activations of a unit are jointly Gaussian over all steps,

    Cov(u_k^t, u_k^t') = weight_var_k E[r^(t-1) r^(t'-1)] + input_var_k E[x^t x^t'] + bias_var_k,

r what ``W_k`` reads, independent between gates and units. The forward pass never uses W^T, so nothing reacts back on
the unit. The population of paths gives the expectations, step by step. Orthogonal matrices, and those of a spectral
margin, have the same law at infinite width, with N E[W_ij^2] for weight_var.

Sources: Sompolinsky, Crisanti & Sommers 1988 (dynamical mean field theory); Yang 2019 (Tensor Programs I).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Spec, Values, initial_parameters
from isornn.theory.errors import TheoryMissing
from isornn.theory.population.units import Draws, Laws, Units, arrangement, bounded, fixed_biases
from isornn.theory.reasons import IDENTITY
from isornn.theory.tied.inputs import InputMoments
from isornn.theory.tied.process import GaussianProcess, Reads, root
from isornn.theory.unit_parameters import with_drawn_parameters


@dataclass(frozen=True)
class TiedLaws:
    """A spec's numbers with its batch flattened, ``(G, 1, 1)``; biases are always drawn once."""

    units: Laws
    input_var: Mapping[str, Tensor]
    previous_input_var: Mapping[str, Tensor]

    @staticmethod
    def of(spec: Spec) -> TiedLaws:
        """Flatten the batch of ``spec``.

        Raises:
            TheoryMissing: identity matrices, or a cell whose update is not pointwise.
        """
        if any(gate.ensemble == "identity" for gate in spec.gates.values()):
            raise TheoryMissing(IDENTITY)

        spec = with_drawn_parameters(replace(spec, biases="fixed"))

        def flat(number: float | Tensor) -> Tensor:
            return torch.as_tensor(number, dtype=torch.float64).expand(spec.batch_shape).reshape(-1, 1, 1)

        gates = spec.gates.items()
        units = replace(
            Laws.of(spec),
            weight={name: flat(gate.recurrent_var) for name, gate in gates},
            bias_mean={name: flat(gate.bias_mean) for name, gate in gates},
            bias_var={name: flat(gate.bias_var) for name, gate in gates},
        )
        return TiedLaws(
            units=units,
            input_var={name: flat(gate.input_var) for name, gate in gates},
            previous_input_var={name: flat(gate.previous_input_var) for name, gate in gates},
        )


class Paths:
    """Units followed from step 0, each with its own variates.

    Args:
        laws: the networks' law.
        input: second moments of the input; it says how many copies (sequences) there are.
        draws: random numbers; units of different replicates share nothing.
        persistent: states that carry over, by which units are put in order (see ``arrangement``).
        initial_variance: the states start at N(0, initial_variance), independent in copies, states and units.
    """

    def __init__(
        self,
        laws: TiedLaws,
        input: InputMoments,
        draws: Draws,
        persistent: tuple[str, ...],
        initial_variance: float = 0.0,
    ) -> None:
        self.laws, self.input, self.draws, self._persistent = laws, input, draws, persistent
        self.time = 0
        offsets, weights = fixed_biases(laws.units, draws, None)
        names = laws.units.cell.states
        first = math.sqrt(initial_variance) * self.normals(len(names))
        self.units = Units(dict(zip(names, first.split(input.copies), strict=True)), offsets, weights)
        self._weighted = laws.units.weighted
        self._processes = {gate: GaussianProcess() for gate in laws.units.cell.gates if self._remembers(gate)}
        self._input_process = GaussianProcess()
        self._reads: dict[str, Reads] = {}

    def drawn(self) -> tuple[Values, Tensor | None]:
        """Pre-activations and pointwise input of the next step, ``(S, G, R, n)`` each; parameters beside them."""
        laws, cell = self.laws.units, self.laws.units.cell
        columns = len(cell.gates) + cell.input_enters_pointwise
        # Units of like state meet evenly spread variates; at first all are alike.
        key = arrangement(self.units, self._persistent) if self.time else None
        fresh = iter(self.normals(columns, key).split(self.input.copies))
        states, u = Values(**self.units.states), Values(**initial_parameters(cell))
        read: dict[str, tuple[Tensor, Tensor]] = {}
        for gate in cell.gates:
            past, now = self._driven(gate)
            if gate in self._weighted:
                name = laws.read_name(gate)
                if name not in read:
                    value = cell.read(gate, states, u)
                    read[name] = self._reads.setdefault(name, Reads()).met(value, self.units.weights)
                before, within = read[name]
                weight = laws.weight[gate][..., None]
                past, now = past + weight * before, now + weight * within
            mean = laws.bias_mean[gate] + self.units.offsets.get(gate, 0.0)
            setattr(u, gate, mean + self._value(self._processes.get(gate), past, now, next(fresh)))
        if not cell.input_enters_pointwise:
            return u, None
        process = self._input_process if self.input.remembers else None
        return u, self._value(process, *self.input.at(self.time), next(fresh))

    def move(self, u: Values, x: Tensor | None) -> None:
        """One step on."""
        new = self.laws.units.cell.update(Values(**self.units.states), u, x)
        shape = (self.input.copies, *self.draws.shape)
        self.units = replace(self.units, states={name: value.expand(shape) for name, value in bounded(new).items()})
        self.time += 1

    def normals(self, columns: int, key: Tensor | None = None) -> Tensor:
        """Standard normals ``(columns * S, G, R, n)``, evenly spread over the units in the order of ``key``.

        Without a key the order is a fresh one, as it must be for two calls in one step to be independent.
        """
        uniform = self.draws.uniform(columns * self.input.copies)
        order = self.draws.order(key).expand(uniform.shape)
        return torch.special.ndtri(torch.empty_like(uniform).scatter(-1, order, uniform))

    def take(self, order: Tensor, weights: Tensor) -> None:
        """Go on with the units ``order`` ``(G, R, n)``, histories and all, which now have these weights."""
        self.units = replace(self.units.taken(order), weights=weights)
        processes = (*self._processes.values(), self._input_process)
        histories: list[GaussianProcess | Reads] = [*processes, *self._reads.values()]
        for history in histories:
            history.take(order)

    def _remembers(self, gate: str) -> bool:
        """Whether the gate's pre-activation at one step tells anything of another's."""
        driven = (self.laws.input_var[gate] + self.laws.previous_input_var[gate] > 0).any()
        return gate in self._weighted or (self.input.remembers and bool(driven))

    def _driven(self, gate: str) -> tuple[Tensor, Tensor]:
        """The input's part of the gate's covariances."""
        now, before = self.input.at(self.time), self.input.at(self.time, lag=1)
        present, previous = self.laws.input_var[gate][..., None], self.laws.previous_input_var[gate][..., None]
        return present * now[0] + previous * before[0], present * now[1] + previous * before[1]

    def _value(self, process: GaussianProcess | None, past: Tensor, now: Tensor, fresh: Tensor) -> Tensor:
        batch, replicates, _ = self.draws.shape
        past, now = (m.expand(batch, replicates, *m.shape[2:]) for m in (past, now))
        if process is None:
            return (root(now, now) @ fresh.movedim(0, 2)).movedim(2, 0)
        return process.drawn(past, now, fresh)
