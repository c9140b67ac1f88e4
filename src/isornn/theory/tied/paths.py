"""Sample paths of tied networks: inputs over time, Gaussian processes extended step by step, units driven by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Spec, Values, initial_parameters
from isornn.theory.assumptions import check_assumptions
from isornn.theory.inputs import centred
from isornn.theory.population.drawn_parameters import with_drawn_parameters
from isornn.theory.population.units import Draws, Laws, Units, arrangement, bounded, fixed_biases

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class WhiteInput:
    """Independent over time; ``covariances`` ``(G, 1, S, S)`` between the copies, by step, the last for all later."""

    covariances: tuple[Tensor, ...]

    @staticmethod
    def of(variance: Tensor, correlations: Sequence[Tensor], copies: int) -> WhiteInput:
        """``E[x_a x_b] = variance * correlation`` by step, arguments ``(G, 1, 1)``, of one copy or of two."""

        def matrix(correlation: Tensor) -> Tensor:
            own = torch.ones_like(variance)
            rows = [own] if copies == 1 else [own, correlation * own, correlation * own, own]
            return torch.cat(rows, -1).reshape(len(variance), 1, copies, copies) * variance[..., None]

        return WhiteInput(tuple(matrix(correlation) for correlation in correlations))

    @property
    def copies(self) -> int:
        return self.covariances[0].shape[-1]

    @property
    def remembers(self) -> bool:
        """Whether the inputs of different steps are correlated."""
        return False

    def at(self, step: int, lag: int = 0) -> Rows:
        """Moments of ``x_(step - lag)``: with those of earlier steps ``(G, 1, S, d)``, and within the step."""
        now = self.covariances[min(max(step - lag, 0), len(self.covariances) - 1)]
        return now.new_zeros(len(now), 1, self.copies, step * self.copies), now


@dataclass(frozen=True)
class GivenInput:
    """Given second moments ``(T, S, T, S)`` of S sequences over T steps; the input before the first step is 0.

    Leading axes ``(G, R)`` are those of specs and replicates.
    """

    covariance: Tensor

    @staticmethod
    def of(over_time: Tensor, correlation: Tensor, copies: int) -> GivenInput:
        """One sequence with second moments ``(T, T)``, or two, whose values go together by ``correlation`` ``(G,)``."""
        between = correlation.new_ones(len(correlation), 1, copies, copies)
        if copies > 1:
            between[..., 0, 1] = between[..., 1, 0] = correlation[:, None]
        return GivenInput(over_time[:, None, :, None] * between[..., None, :, None, :])

    @property
    def copies(self) -> int:
        return self.covariance.shape[-1]

    @property
    def remembers(self) -> bool:
        """Whether the inputs of different steps are correlated."""
        return True

    def at(self, step: int, lag: int = 0) -> Rows:
        """Moments of ``x_(step - lag)``: with those of earlier steps ``(1, 1, S, d)``, and within the step."""
        copies, place = self.copies, step - lag
        leading = self.covariance.shape[:-4] or (1, 1)
        before = self.covariance.new_zeros(*leading, copies, step * copies)
        if place < 0:
            return before, self.covariance.new_zeros(*leading, copies, copies)
        row = self.covariance[..., place, :, :, :]
        known = row[..., :place, :].reshape(*leading, copies, place * copies)
        padding = before[..., : lag * copies]
        return torch.cat((padding, known), -1), row[..., place, :].reshape(*leading, copies, copies)


@dataclass(frozen=True)
class AutoregressiveInput:
    """``E[x_t x_(t-k)] = autocorrelation^k covariance`` ``(G, 1, S, S)``, from long before the first step."""

    covariance: Tensor
    autocorrelation: Tensor

    @property
    def copies(self) -> int:
        return self.covariance.shape[-1]

    @property
    def remembers(self) -> bool:
        """Whether the inputs of different steps are correlated."""
        return True

    def at(self, step: int, lag: int = 0) -> Rows:
        """Moments of ``x_(step - lag)`` with those ``lag`` before each earlier step ``(G, 1, S, d)``, and within."""
        distances = step - torch.arange(step, dtype=torch.float64)
        past = self.autocorrelation[..., None] ** distances[:, None] * self.covariance[..., None, :]
        return past.flatten(-2), self.covariance


InputMoments = WhiteInput | GivenInput | AutoregressiveInput


# A direction whose variance, given all before, is below this share of its own is rounding, and is dropped.
_ZERO = 1e-11


class ReadHistory:
    """What a recurrent matrix has read so far, and its second moments over units."""

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def met(self, value: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Second moments of a new ``value`` with all before ``(G, R, S, d)`` and with itself ``(G, R, S, S)``.

        Args:
            value: ``(S, G, R, n)``.
            weights: of units, ``(G, R, n)`` with mean 1, or ``None`` where all are equal.
        """
        new = value.movedim(0, 2)
        weighted = (new if weights is None else new * weights[:, :, None]) / new.shape[-1]
        all_values = new if self._values is None else torch.cat((self._values, new), 2)
        self._values = all_values
        moments = weighted @ all_values.mT
        before = all_values.shape[2] - new.shape[2]
        return moments[..., :before], moments[..., before:]

    def take(self, order: Tensor) -> None:
        """Keep the units ``order`` ``(G, R, n)``."""
        if self._values is not None:
            self._values = _taken(self._values, order)


class GaussianProcess:
    """A process over time of which every unit has a path: a common Cholesky factor, each unit's own normals."""

    def __init__(self) -> None:
        self._factor: Tensor | None = None
        self._normals: Tensor | None = None

    def drawn(self, past: Tensor, now: Tensor, fresh: Tensor) -> Tensor:
        """The next step's values ``(S, G, R, n)``.

        Args:
            past: covariances with the values of all steps before, ``(G, R, S, d)``.
            now: covariances within the step, ``(G, R, S, S)``.
            fresh: standard normals, ``(S, G, R, n)``.
        """
        fresh = fresh.movedim(0, 2)
        if self._factor is None or self._normals is None:
            self._factor, self._normals = root(now, now), fresh
            return (self._factor @ fresh).movedim(2, 0)
        pivots = self._factor.diagonal(dim1=-2, dim2=-1)
        dropped = pivots == 0
        solvable = self._factor + torch.diag_embed(dropped.to(pivots.dtype))
        known = torch.linalg.solve_triangular(solvable, past.mT.expand(*dropped.shape, past.shape[2]), upper=False)
        known = torch.where(dropped[..., None], 0.0, known).mT
        corner = root(now - known @ known.mT, now)
        value = known @ self._normals + corner @ fresh
        above = known.new_zeros(*known.shape[:2], known.shape[-1], corner.shape[-1])
        self._factor = torch.cat((torch.cat((self._factor, above), -1), torch.cat((known, corner), -1)), -2)
        self._normals = torch.cat((self._normals, fresh), 2)
        return value.movedim(2, 0)

    def take(self, order: Tensor) -> None:
        """Keep the units ``order`` ``(G, R, n)``."""
        if self._normals is not None:
            self._normals = _taken(self._normals, order)


def root(covariance: Tensor, whole: Tensor) -> Tensor:
    """Cholesky factor of a semi-definite matrix; columns of directions that are zero within rounding are zero.

    Differentiable; a direction that is dropped is taken to stay zero.

    Args:
        covariance: ``(..., S, S)``, given what is known already.
        whole: the same before anything was known: what rounding is measured by.

    >>> root(torch.ones(2, 2), torch.ones(2, 2))
    tensor([[1., 0.],
            [1., 0.]])
    """
    floor = _ZERO * whole.detach().diagonal(dim1=-2, dim2=-1)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square()
    if not bool(failed.any()) and bool((pivots > floor).all()):
        return factor
    kept = _independent(covariance.detach(), floor)
    solid = torch.where(kept[..., :, None] & kept[..., None, :], covariance, torch.eye(kept.shape[-1]).to(covariance))
    columns = torch.where(kept[..., None, :], covariance, 0.0)
    rows = torch.linalg.solve_triangular(torch.linalg.cholesky(solid), columns.mT, upper=False).mT
    return torch.where(kept[..., None, :], rows, 0.0).tril()


def _independent(covariance: Tensor, floor: Tensor) -> Tensor:
    """Which directions have a variance above ``floor`` given those before them, ``(..., S)``."""
    factor, kept = torch.zeros_like(covariance), []
    for j in range(covariance.shape[-1]):
        column = covariance[..., j] - (factor[..., :j] @ factor[..., j, :j, None])[..., 0]
        pivot = column[..., j]
        kept.append(pivot > floor[..., j])
        scale = torch.where(kept[-1], pivot, 1.0).sqrt()
        factor[..., j] = torch.where(kept[-1][..., None], column / scale[..., None], 0.0)
    return torch.stack(kept, -1)


def _taken(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(-1, order[:, :, None].expand(values.shape))


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
        check_assumptions(spec)
        spec = with_drawn_parameters(centred(replace(spec, biases="fixed")))

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
        self._reads: dict[str, ReadHistory] = {}

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
                    read[name] = self._reads.setdefault(name, ReadHistory()).met(value, self.units.weights)
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
        histories: list[GaussianProcess | ReadHistory] = [*processes, *self._reads.values()]
        for history in histories:
            history.take(order)

    def _remembers(self, gate: str) -> bool:
        """Whether the gate's pre-activations of different steps are correlated."""
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
