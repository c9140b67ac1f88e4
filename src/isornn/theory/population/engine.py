"""The population engine: exact infinite-width theory of untied networks for any cell, by sampled units.

At infinite width units are independent and pre-activations Gaussian, independent across gates and time, with
moments that the population itself determines; so n units sampled and stepped, each with its own variates, are the
theory (Gilboa et al. 2019, Algorithm 1, is the case of the LSTM's cell state). Needs only the cell's update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from isornn.cells import Spec, Values
from isornn.cells.arguments import correlations_by_step
from isornn.cells.jumps import jumping
from isornn.theory.inputs import constant_share
from isornn.theory.population.jacobian import (
    JacobianSums,
    SampledJacobianMoments,
    StateStructure,
    derivative_matrix,
    linearise,
)
from isornn.theory.population.response import Response, follow
from isornn.theory.population.settling import MOST_ROUNDS, SLOW_ROUNDS, WARM_ROUNDS, Dynamics, Moments
from isornn.theory.population.slow_law import of_units
from isornn.theory.population.units import Draws, Field, Laws, Units, draw_gates, variates
from isornn.theory.reasons import KEEPS_START, NOT_CONVERGED

Copies = Literal["apart", "identical"]
_UNSETTLED = 16  # steps that a population without a fixed point is followed
_APART = 4  # steps between the cohorts of a response
_MET = 1e-6  # of the correlation of copies that have met
_MIDDLE = 0.75  # of the steps to stationarity, from where moments are averages
_OF_OWN_FIELDS = 0.25  # of the cohorts of a pair, as many again
_E_FOLDS = 6  # by which the correlation of copies has come nearer to its fixed point than where it began, at least


@dataclass(frozen=True)
class Stationary:
    """A stationary population.

    Args:
        moments: time averages over the last block of steps.
        converged, residual: whether block means agree, and the largest change between the last two blocks, relative
            to Q (the mean's to sqrt Q).
        frozen: whether over 1 % of the units retain their state to rounding, so that it stays at its start.
        keeps_start: whether the moments depend on the states that units begin with: they keep any, or have several
            stable ones.
        steps: steps taken.
        rounds: how often two copies were drawn from the closed law of their states before that, at least.
        units, field: the population itself and the moments that drive its gates, for what is computed from it.
    """

    moments: Moments
    converged: Tensor
    frozen: Tensor
    keeps_start: Tensor
    residual: Tensor
    steps: int
    rounds: int
    units: Units
    field: Field

    def refusal(self) -> str | None:
        """Why the population of some spec has no stationary law, or ``None`` where all have one."""
        reasons = {KEEPS_START: self.keeps_start, NOT_CONVERGED: ~self.converged}
        return next((reason for reason, where in reasons.items() if bool(where.any())), None)

    def alone(self) -> Stationary:
        """One of two copies, which the other does not act on: a population with identical copies."""
        return replace(self, moments=self.moments.alone(), units=self.units.one_copy(), field=self.field.one_copy())


@dataclass(frozen=True)
class Stable:
    """The stable fixed point with its response, and both for identical copies: ``identical_response.chi`` is chi_1.

    ``pair_settled`` is where copies that differ have come to their stable correlation, by how fast they approach it.
    """

    stationary: Stationary
    response: Response
    identical: Stationary
    identical_response: Response
    pair_settled: Tensor


@dataclass(frozen=True)
class Effort:
    """What `Population.stable` spends: bounds on steps and errors, as the arguments of ``settle`` and ``respond``.

    At least ``least_steps`` are made before a fixed point counts as settled.
    Without ``apart`` copies are not started apart, and answers stand only where the input correlation and the stable
    correlation are 1 (chi_1 <= 1).
    """

    settle_steps: int = 4096
    least_steps: int = 0
    settle_tolerance: float = 2e-3
    response_steps: int = 2048
    response_tolerance: float = 5e-3
    cohorts: int = 64
    apart: bool = True


_FULL = Effort()


class Population:
    """Sampled units of the networks that ``spec`` describes.

    Args:
        spec: a cell and its random law; leading axes of its numbers are a batch.
        generator: source of all randomness; equal seeds give equal results.
        units: sampled units in each replicate, a power of two.
        replicates: independent populations, from which standard errors come.

    >>> from isornn.cells import LSTM, Gate
    >>> gates = {"i": Gate(1, 0.5), "f": Gate(1, 0.5, bias_mean=1.0), "g": Gate(1, 0.5), "o": Gate(1, 0.5)}
    >>> found = Population(Spec(LSTM(), gates), generator=torch.Generator().manual_seed(0)).stable()
    >>> round(float(found.stationary.moments.second_moment), 3), round(float(found.response.chi), 2)
    (0.035, 0.56)
    """

    def __init__(self, spec: Spec, *, generator: torch.Generator, units: int = 256, replicates: int = 32) -> None:
        self.spec = spec
        self.laws = Laws.of(spec)
        self.batch_shape = spec.batch_shape
        self.structure = StateStructure.of(self.laws.cell)
        # Those that do not enter their own update affinely: the map of correlations is not one of correlations alone,
        # and units may have several stable states.
        self._nonaffine = tuple(name for name in self.structure.persistent if name not in self.structure.closed)
        if self.laws.remembered:  # the closed law of a slow state needs inputs that are independent over time
            self.structure = replace(self.structure, slow=(), joint=())
        self._draws = Draws(self.laws.batch, replicates, units, generator)
        self._dynamics = Dynamics(self.laws, self.structure, self._draws)

    def settle(
        self,
        copies: Copies = "apart",
        *,
        max_steps: int = 4096,
        least_steps: int = 0,
        tolerance: float = 2e-3,
        rounds: int = WARM_ROUNDS,
        field: Field | None = None,
    ) -> Stationary:
        """Iterate to stationarity.

        Args:
            copies: ``"apart"``: two copies of each unit, independent at first, driven by inputs of the spec's
                correlation, find the stable fixed point of the correlation map; ``"identical"``: one copy (C = 1).
            max_steps: bound on the steps; running out gives ``converged`` false, as does growth without bound.
            least_steps: that are made however soon the means agree.
            tolerance: wanted standard error of Q, relative.
            rounds: how often copies apart are drawn from the closed law of their states, at least, before steps begin.
            field: the moments that drive gates, held, where they are known; else those of the population.
        """
        with torch.no_grad():
            count = 2 if copies == "apart" else 1
            found = self._dynamics.settle(count, max_steps, least_steps, tolerance, rounds, field)
            keeps_start = found.frozen & found.agreed
            if self._nonaffine and bool(found.converged.any()):
                keeps_start = keeps_start | found.converged & self._dynamics.keeps_start(found, self._nonaffine)
        return Stationary(
            moments=Moments.of(found.mean, self.batch_shape),
            converged=(found.converged & ~keeps_start).reshape(self.batch_shape),
            frozen=found.frozen.reshape(self.batch_shape),
            keeps_start=keeps_start.reshape(self.batch_shape),
            residual=found.residual.reshape(self.batch_shape),
            steps=found.steps,
            rounds=rounds,
            units=found.units,
            field=found.field,
        )

    def settle_together(self, together: Tensor) -> tuple[Stationary, Tensor]:
        """``settle`` with identical copies at the specs ``together`` (batch-shaped), elsewhere with copies apart; and
        where these have come to their stable correlation."""
        effort = replace(_FULL, cohorts=1)  # of the response only how fast copies approach each other is wanted
        settle, respond = self._within(effort)
        if bool(together.all()):
            return settle("identical"), together
        if not bool(together.any()):
            found, _, met = self._settled_apart(settle, respond, lambda apart: apart, effort)
            return found, met
        identical = settle("identical")
        found, _, met = self._settled_apart(settle, respond, partial(_merged, together, identical), effort)
        return found, met

    def respond(
        self,
        stationary: Stationary,
        *,
        length: int | None = None,
        max_steps: int = 2048,
        tolerance: float = 5e-3,
        max_cohorts: int = 64,
        source_gates: Sequence[Sequence[str]] = (),
    ) -> Response:
        """Response of ``stationary`` to a displacement of both copies alike at step 0.

        At step 0 every state that carries itself (d s_j'/d s_j is not zero pointwise: the LSTM's c; h of a cell with
        one state) is displaced in every unit independently with unit variance, and the states that are formed from it
        in the same step (the LSTM's h = o tanh(c)) move along. So P_0 = E[dh^2], and the reach counts from P_1.
        With one copy (``"identical"``) chi is chi_1, the growth per step of E|dh|^2 at C = 1.

        Of copies that differ all replicates have one field, their mean. Near criticality the correlation within a
        finite replicate fluctuates slowly and by much, and as chi is convex in it, the mean of chi would be too large.
        What the mean field is uncertain by shows in cohorts under each replicate's own.

        Args:
            length: profile wanted, times 0 .. length; by default until the reach is found and somewhat beyond.
            max_steps: bound on the steps followed. Units that keep their biases and carry one affine state are followed
                for some tens of steps, and later lags taken from each unit's own rate.
            tolerance: wanted standard error of ln chi, relative; up to ``max_cohorts`` cohorts are averaged,
                as long as all together take no more than 1024 steps.
            source_gates: groups of gates with a gated read, whose source terms are wanted too:
                ``Response.source_terms``.
        """

        if not bool(stationary.converged.any()):
            max_steps, max_cohorts = _UNSETTLED, 1
        # The response to source terms has a row without each replicate, which show its errors under own fields alone.
        if stationary.units.copies == 1 or not stationary.field.values or source_gates:
            return self._followed(stationary, length, max_steps, tolerance, max_cohorts, source_gates)
        shared = replace(stationary, field=stationary.field.over_replicates())
        found = self._followed(shared, length, max_steps, tolerance, max_cohorts)
        few = math.ceil(found.cohorts * _OF_OWN_FIELDS)
        own = self._followed(stationary, found.profile.shape[-1] - 1, max_steps, tolerance, few)
        return found.with_error_of_field(own)

    def _followed(
        self,
        stationary: Stationary,
        length: int | None,
        max_steps: int,
        tolerance: float,
        max_cohorts: int,
        source_gates: Sequence[Sequence[str]] = (),
    ) -> Response:
        """``respond`` under the field of ``stationary``."""
        with torch.no_grad():
            known = self._dynamics.state_laws(stationary.units, stationary.field)
            loss = self._dynamics.loss(stationary.units, stationary.field, known)

        def advance(units: Units) -> tuple[Units, Tensor | None]:
            with torch.no_grad():
                units = self._dynamics.refreshed(units, known)
                for _ in range(_APART):
                    units = self._dynamics.step(units, stationary.field)
                return units, None if loss is None else of_units(loss, units)

        return follow(
            self.laws,
            self.structure,
            stationary.units,
            stationary.field,
            self._draws,
            advance,
            batch_shape=self.batch_shape,
            length=length,
            max_steps=max_steps,
            tolerance=tolerance,
            max_cohorts=max_cohorts,
            source_gates=source_gates,
        )

    def stable(self, length: int | None = None, effort: Effort = _FULL) -> Stable:
        """The stable fixed point of the correlation map and its response, with chi_1 beside it.

        With input correlation 1 the map is a power series in correlations with coefficients that are not negative
        (Mehler), hence convex, with fixed point C = 1: where chi_1 <= 1 there is no other, and one copy is enough.
        Elsewhere copies started apart find it, and where that is so of all specs each copy is the one. Where a state
        does not enter its own update affinely units may stick, so that copies never meet: copies started apart say
        whether they do. ``length`` is as for ``respond``.
        """
        settle, respond = self._within(effort, length)
        alike = self.laws.input_correlation.reshape(self.batch_shape) == 1
        if effort.apart and not bool(alike.any()):
            apart, response, met = self._settled_apart(settle, respond, lambda found: found, effort)
            return Stable(apart, response, apart.alone(), respond(apart.alone()), met)
        identical = settle("identical")
        response = respond(identical)
        # Of a function that jumps chi, from derivatives, is not the slope at C = 1, which is infinite.
        may_meet = alike & (response.chi <= 1) & (not jumping(self.spec.cell))
        if not effort.apart or bool(((may_meet & (not self._nonaffine)) | ~identical.converged).all()):
            return Stable(identical, response, identical, response, torch.ones_like(alike))

        def merged(apart: Stationary) -> Stationary:
            one = may_meet & ((not self._nonaffine) | (apart.moments.correlation > 1 - _MET))
            return identical if bool((one | ~identical.converged).all()) else _merged(one, identical, apart)

        stationary, of_pair, met = self._settled_apart(settle, respond, merged, effort)
        return Stable(stationary, of_pair, identical, response, met)

    def _within(
        self, effort: Effort, length: int | None = None
    ) -> tuple[Callable[..., Stationary], Callable[..., Response]]:
        """``settle`` and ``respond`` with this effort."""
        settle = partial(
            self.settle,
            max_steps=effort.settle_steps,
            least_steps=effort.least_steps,
            tolerance=effort.settle_tolerance,
        )
        respond = partial(
            self.respond,
            length=length,
            max_steps=effort.response_steps,
            tolerance=effort.response_tolerance,
            max_cohorts=effort.cohorts,
        )
        return settle, respond

    def _settled_apart(
        self,
        settle: Callable[..., Stationary],
        respond: Callable[..., Response],
        merged: Callable[[Stationary], Stationary],
        effort: Effort,
    ) -> tuple[Stationary, Response, Tensor]:
        """Copies apart, ``merged`` with others, their response, and where they have come to their stable correlation.

        Block means that agree say little of a slow approach, but the response says how fast it is: chi per step, and
        per round that draws states from their law what P gives back to itself. Where there were too few, more are made.
        """
        rounds, steps, response = WARM_ROUNDS, effort.least_steps, None
        while True:
            found = merged(settle("apart", rounds=rounds, least_steps=steps))
            rough = respond(found) if response is None else respond(found, max_cohorts=1)
            response = response or rough
            in_rounds, in_steps = self._approach(rough)
            differ = (found.moments.correlation < 1 - _MET) & found.moments.correlation_defined
            near = ~differ | (found.rounds / in_rounds + _MIDDLE * found.steps / in_steps >= 1)
            left = ~near & found.converged
            before = rounds, steps
            if self._by_rounds and bool(left.any()):
                rounds = _next(in_rounds[left], max(4 * rounds, SLOW_ROUNDS), MOST_ROUNDS)
            elif bool(left.any()):
                needed = in_steps[left] / _MIDDLE
                within = needed[needed.isinf() | (needed <= effort.settle_steps)]  # others come too soon all the same
                steps = max(steps, _next(within, 4 * found.steps, effort.settle_steps))
            if (rounds, steps) <= before:
                return found, response if rough is response else respond(found), near

    @property
    def _by_rounds(self) -> bool:
        """Whether the laws of all states that are carried over are known, so that rounds settle them."""
        return bool(self.structure.closed) and self.structure.closed == self.structure.persistent

    def _approach(self, response: Response) -> tuple[Tensor, Tensor]:
        """Rounds and steps in which copies come nearer to their stable correlation by `_E_FOLDS`; infinite where the
        one at which they are repels them."""
        slope = response.feedback if self._by_rounds else torch.ones_like(response.feedback)
        rounds = torch.where(slope < 1, _E_FOLDS / -slope.clamp(1e-12, 1 - 1e-12).log(), torch.inf)
        steps = torch.where(response.chi < 1, _E_FOLDS * response.memory(), torch.inf)
        return rounds.clamp(min=1e-3), steps.clamp(min=1e-3)

    def jacobian(self, stationary: Stationary, *, steps: int = 16) -> SampledJacobianMoments:
        """First two moments of the squared singular values of d s'/d s, averaged over ``steps`` steps.

        Raises:
            TheoryMissing: see ``JacobianSums``.
        """
        units = stationary.units.one_copy()
        sums = JacobianSums(self.laws)
        for _ in range(steps):
            with torch.no_grad():
                units = self._dynamics.step(units, stationary.field)
            sums.add(units, stationary.field, self._draws.uniform(variates(self.laws, units.copies)))
        return sums.moments(self.batch_shape)

    def must_settle(self, stationary: Stationary) -> Tensor:
        """Where the population settles for certain, however long that takes: no gate reads a state, states enter their
        update affinely, and a step of every sampled unit brings two states of it nearer to each other."""
        names = self.structure.persistent
        alone = torch.ones(self.laws.batch, dtype=torch.bool)
        for weight in self.laws.weight.values():
            alone = alone & (weight.reshape(-1) == 0)
        if self._nonaffine or not names or not bool(alone.any()):
            return torch.zeros(self.batch_shape, dtype=torch.bool)
        ((units, u, x),) = self.snapshots(stationary, 1)
        _, carry, _ = linearise(self.laws.cell, units.states, u, x)
        kept = derivative_matrix(names, names, carry, units).movedim((0, 1), (-2, -1))
        return (alone & (torch.linalg.matrix_norm(kept, 2) < 1).all(-1).all(-1)).reshape(self.batch_shape)

    def moments_of(self, stationary: Stationary, state: str, *, steps: int = 64) -> Moments:
        """Moments of any state, averaged over ``steps`` further steps."""
        units, record = stationary.units, []
        with torch.no_grad():
            known = self._dynamics.state_laws(units, stationary.field)
            for _ in range(steps):
                units = self._dynamics.step(self._dynamics.refreshed(units, known), stationary.field)
                record.append(units.moments(state))
        return Moments.of(torch.stack(record).mean(0), self.batch_shape)

    def snapshots(self, stationary: Stationary, steps: int) -> Iterator[tuple[Units, Values, Tensor | None]]:
        """One copy of the units at ``steps`` further steps, with fresh pre-activations and pointwise input."""
        units = stationary.units.one_copy()
        for _ in range(steps):
            with torch.no_grad():
                units = self._dynamics.step(units, stationary.field)
                uniform = self._draws.uniform(variates(self.laws, units.copies))
                u, x = draw_gates(self.laws, units, stationary.field, uniform)
            yield units, u, x

    def state_samples(self, stationary: Stationary, state: str) -> Tensor:
        """Stationary samples of a state component, ``(*batch, R * n)``.

        For the LSTM's c these are samples of its perpetuity. Source: Gilboa et al. 2019, Algorithm 1 and figure 7.
        """
        units = stationary.units
        value = units.states[state][0]
        if units.weights is not None:
            ladder = units.weights.cumsum(-1)
            places = (torch.arange(value.shape[-1], dtype=torch.float64) + 0.5) / value.shape[-1] * ladder[..., -1:]
            value = value.gather(-1, torch.searchsorted(ladder, places).clamp(max=value.shape[-1] - 1))
        return value.reshape(*self.batch_shape, -1)

    def trajectory(
        self,
        steps: int,
        *,
        input_correlation: float | Sequence[float] | Tensor | None = None,
        initial: Mapping[str, float] | None = None,
    ) -> Moments:
        """Moments at times 0, 1, .. steps, shaped ``(*batch, steps + 1)``.

        Args:
            input_correlation: Sigma_z, one number or one for each step; the spec's own by default.
            initial: variance of each state at time 0, Gaussian, independent between units and the two copies; 0 by
                default.
        """
        with torch.no_grad():
            correlations = self._correlations(steps, input_correlation)
            units = self._dynamics.start(2, correlations[0] if correlations else None)
            scale = {name: float((initial or {}).get(name, 0.0)) ** 0.5 for name in units.states}
            units = replace(units, states={name: scale[name] * value for name, value in units.states.items()})
            record, field = [self._dynamics.measure(units)], Field()
            for sigma_z in correlations:
                units = self._dynamics.step(units, field, sigma_z)
                record.append(self._dynamics.measure(units))
        return Moments.of(torch.stack(record, 2), self.batch_shape)

    def _correlations(self, steps: int, given: float | Sequence[float] | Tensor | None) -> list[Tensor]:
        if given is None:
            return [self.laws.input_correlation] * steps
        values = correlations_by_step(given, steps)
        if self.laws.remembered and not bool((values == values[:1]).all()):
            raise ValueError("input_correlation: one number, where inputs are correlated over time")
        share = constant_share(self.spec).reshape(-1, 1, 1)
        return [share + (1 - share) * value for value in values]


def _merged(one: Tensor, identical: Stationary, apart: Stationary) -> Stationary:
    """``identical`` at the specs ``one`` (batch-shaped), ``apart`` elsewhere."""
    return Stationary(
        moments=Moments.chosen(one, identical.moments, apart.moments),
        converged=torch.where(one, identical.converged, apart.converged),
        frozen=torch.where(one, identical.frozen, apart.frozen),
        keeps_start=torch.where(one, identical.keeps_start, apart.keeps_start),
        residual=torch.where(one, identical.residual, apart.residual),
        steps=identical.steps + apart.steps,
        rounds=apart.rounds,
        units=apart.units.with_identical(one.reshape(-1), identical.units),
        field=apart.field.with_chosen(one.reshape(-1), identical.field),
    )


def _next(needed: Tensor, more: int, most: int) -> int:
    """The largest finite number needed, or ``more`` where some are infinite; at most ``most``."""
    finite = needed[needed.isfinite()]
    found = max(float(finite.max()) if finite.numel() else 0.0, more if len(finite) < len(needed) else 0.0)
    return min(math.ceil(found), most)
