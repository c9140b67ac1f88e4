"""Steps of a population, and its way to stationarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Values
from isornn.theory.population.jacobian import StateStructure
from isornn.theory.population.joint_law import JointLaw
from isornn.theory.population.slow_law import SLOW, SOON_SETTLED, SlowLaw, loss_by_bias, one_variate
from isornn.theory.population.tangents import falls
from isornn.theory.population.units import (
    Draws,
    Field,
    Laws,
    Units,
    arrangement,
    bounded,
    draw_gates,
    first_inputs,
    fixed_biases,
    next_inputs,
    variates,
)
from isornn.theory.quantity import jackknife, over_replicates, pooled


@dataclass(frozen=True)
class Moments:
    """Moments of the state that is read, each shaped like the batch (times steps, for a trajectory).

    ``second_moment`` is Q = E[h^2], ``pair_moment`` E[h_a h_b], ``correlation`` (E[h_a h_b] - mu^2) / (Q - mu^2);
    where Q = mu^2 within rounding ``correlation_defined`` is false and ``correlation`` 1. ``stderr`` has the
    standard errors by field name.
    """

    mean: Tensor
    second_moment: Tensor
    pair_moment: Tensor
    correlation: Tensor
    correlation_defined: Tensor
    stderr: dict[str, Tensor]

    @staticmethod
    def of(means: Tensor, shape: Sequence[int]) -> Moments:
        """From means of h, h^2 and h_a h_b, ``(G, R, 3)`` (or ``(G, R, T, 3)``)."""
        rows = pooled(means)
        mu, q, pair = rows.unbind(-1)
        spread = q - mu.square()
        defined = spread > 1e-12 * q.clamp(min=1e-280)
        correlation = torch.where(defined, (pair - mu.square()) / torch.where(defined, spread, 1.0), 1.0)
        fields = {"mean": mu, "second_moment": q, "pair_moment": pair, "correlation": correlation}
        shape = (*shape, *mu.shape[2:])
        both = {name: tuple(v.reshape(shape) for v in jackknife(value)) for name, value in fields.items()}
        values = {name: value for name, (value, _) in both.items()}
        return Moments(
            **values, correlation_defined=defined[0].reshape(shape), stderr={name: se for name, (_, se) in both.items()}
        )

    def alone(self) -> Moments:
        """Of either copy by itself: the pair's are its own."""
        errors = {
            **self.stderr,
            "pair_moment": self.stderr["second_moment"],
            "correlation": torch.zeros_like(self.mean),
        }
        one = torch.ones_like(self.correlation)
        return replace(self, pair_moment=self.second_moment, correlation=one, stderr=errors)

    @staticmethod
    def chosen(mask: Tensor, yes: Moments, no: Moments) -> Moments:
        """Fields of ``yes`` where ``mask``, else of ``no``."""
        names = ("mean", "second_moment", "pair_moment", "correlation", "correlation_defined")
        values = {name: torch.where(mask, getattr(yes, name), getattr(no, name)) for name in names}
        errors = {name: torch.where(mask, yes.stderr[name], no.stderr[name]) for name in yes.stderr}
        return Moments(**values, stderr=errors)


StateLaws = Mapping[tuple[str, ...], SlowLaw | JointLaw]
# Of two stable fixed points networks, whose states start at 0, reach the lower one. At 0 itself a state that has no
# input would stay.
_SMALL = 0.1
WARM_ROUNDS = 6
SLOW_ROUNDS, MOST_ROUNDS = 64, 256  # where states are slow
_FIRST_BLOCK = 16
_REFRESH = 16
_SAME_MOMENTS = 0.01
_SAME_MEAN = 1e-4  # change of a block's mean, of its scale, that is none
_PRECISE_ENOUGH = 1000
_LONGEST_MIXING = 100
_GROWTH_SHOWS = 240
_FROZEN_SHARE = 0.01
_ALTERNATES = 0.02
_UNBOUNDED = 1e40  # the second moment of states on their way to `HUGE`, where they are held


@dataclass(frozen=True)
class SettledUnits:
    """Where ``Dynamics.settle`` ended: replicate means ``(G, R, 3)`` of h, h^2 and h_a h_b over the last block.

    ``frozen`` is where over 1 % of the units retain their state to rounding; such a population has not converged.
    ``agreed`` is where the last two blocks' means agree all the same.
    """

    mean: Tensor
    converged: Tensor
    frozen: Tensor
    agreed: Tensor
    residual: Tensor
    steps: int
    units: Units
    field: Field


class Dynamics:
    """One step of a population under its laws, and many."""

    def __init__(self, laws: Laws, structure: StateStructure, draws: Draws) -> None:
        self.laws, self.structure, self.draws = laws, structure, draws

    def start(self, copies: int, correlation: Tensor | None = None) -> Units:
        """Units with states N(0, 1), independent between copies."""
        offsets, weights = fixed_biases(self.laws, self.draws, self.structure.retention_gates)
        names, count = self.laws.cell.states, copies * len(self.laws.cell.states)
        normal = torch.special.ndtri(self.draws.uniform(count + copies * len(self.laws.remembered)))
        states = dict(zip(names, normal[:count].split(copies), strict=True))
        return Units(states, offsets, weights, first_inputs(self.laws, normal[count:], correlation))

    def step(self, units: Units, field: Field, correlation: Tensor | None = None) -> Units:
        """The units one step later; ``field`` follows unless it is held."""
        laws, draws = self.laws, self.draws
        units = units.taken(draws.order(arrangement(units, self.structure.persistent)))
        uniform = draws.uniform(variates(laws, units.copies))
        u, x = draw_gates(laws, units, field, uniform, correlation)
        new = laws.cell.update(Values(**units.states), u, x)
        shape = next(iter(units.states.values())).shape
        units = replace(units, states={name: value.expand(shape) for name, value in bounded(new).items()})
        return next_inputs(laws, units, uniform, correlation)

    def measure(self, units: Units) -> Tensor:
        """Means of h, h^2 and h_a h_b, ``(G, R, 3)``."""
        return units.moments(self.laws.cell.states[0])

    def state_laws(self, units: Units, field: Field, before: StateLaws | None = None) -> StateLaws:
        """The laws of states, by their names, that are known in closed form under the present gate law.

        Args:
            before: of the same units earlier; the answer where they cannot have changed, as no gate reads a state.
        """
        joint, found = self.structure.joint, dict[tuple[str, ...], SlowLaw | JointLaw]()
        if before and not field.values:
            of_draws = not units.offsets and any(not law.exact for names, law in before.items() if names != joint)
            if not of_draws:
                return before
        if not units.offsets or one_variate(self.laws, units) or self._any_slow(units, field):
            found = {(name,): SlowLaw.of(self.laws, self.draws, units, field, name) for name in self.structure.slow}
        return found | ({joint: JointLaw.of(self.laws, units, field, joint)} if joint else {})

    def _any_slow(self, units: Units, field: Field) -> bool:
        """Whether any unit forgets so slowly that steps would not settle it soon."""
        one = units.one_copy()
        return any(
            bool((loss_by_bias(self.laws, one, field, name) < SOON_SETTLED).any()) for name in self.structure.slow
        )

    def loss(self, units: Units, field: Field, known: StateLaws) -> Tensor | None:
        """What each unit's carried states lose per step, in the order of the laws ``known``.

        None if units do not keep biases, or do not carry one affine state alone, or several that lose alike in all
        directions; or if what they carry changes its sign.
        """
        carried, joint = self.structure.persistent, known.get(self.structure.joint)
        if not units.offsets or len(self.structure.closed) != len(carried):
            return None
        if isinstance(joint, JointLaw) and carried == self.structure.joint:
            loss = joint.loss if joint.exact_pair and joint.isotropic else None
        else:
            loss = self._loss_of_one(units, field, known) if len(carried) == 1 else None
        return loss if loss is not None and falls(loss) else None

    def _loss_of_one(self, units: Units, field: Field, known: StateLaws) -> Tensor:
        law = known.get(self.structure.slow)
        exact = law is not None and law.exact_pair
        return law.loss if law is not None and exact else loss_by_bias(self.laws, units, field, *self.structure.slow)

    def refreshed(self, units: Units, known: StateLaws) -> Units:
        """Slow states drawn afresh where their law is known to be Gaussian: each time a sample of its own.

        Left to themselves they would be the same sample for as many steps as their time scale.
        """
        for names, law in known.items():
            if bool(law.gaussian.any()):
                own = law.of_units(units)
                units = own.redrawn(self.draws, units, names, own.gaussian)
                units = units.taken(self.draws.order(None))
        return units

    def settle(
        self,
        copies: int,
        max_steps: int,
        least_steps: int,
        tolerance: float,
        rounds: int = WARM_ROUNDS,
        field: Field | None = None,
    ) -> SettledUnits:
        """Iterate until the means of successive blocks, each twice as long as the last, agree.

        Args:
            rounds: how often two copies are drawn from the closed law of their states, at least, before steps begin.
            field: what drives the gates, where it is known; else the population itself.
        """
        field = Field() if field is None else field
        units = self.start(copies)
        units = replace(units, states={name: _SMALL * value for name, value in units.states.items()})
        units, known = self._warm(units, field, rounds)
        frozen, least = self._frozen(units, known), _mixing(units, known).clamp(min=least_steps)
        means: list[Tensor] = []
        ends, block = [0], _FIRST_BLOCK
        while True:
            units, mean_field, moments = self._block(units, field, block, known)
            record, alternating = moments.mean(0), _alternating(moments[..., 1])
            # The laws under the gate law that the block had, on average.
            known = self.state_laws(units, mean_field, known) if known else known
            means.append(controlled(record[..., :3], self._beyond(record[..., 3:], units, known)))
            ends.append(ends[-1] + block)
            if len(means) < 2:
                continue
            residual, agreed, noise = _agreement(means[-2], means[-1])
            growing = _growing(means, ends)
            converged = agreed & ~frozen & ~growing & ~alternating & ~_drifting(means)
            # Slow units are the same units throughout a block: beyond this a longer average gains little.
            precise = converged & ((noise <= tolerance) | (ends[-1] >= _PRECISE_ENOUGH)) & (ends[-1] >= least)
            block *= 2
            unsettled = frozen | growing | (alternating & (ends[-1] >= _GROWTH_SHOWS))
            if bool((precise | unsettled).all()) or ends[-1] + block > max_steps:
                return SettledUnits(means[-1], converged, frozen, agreed, residual, ends[-1], units, mean_field)

    def keeps_start(self, found: SettledUnits, names: Sequence[str]) -> Tensor:
        """Where units whose states ``names`` begin elsewhere, under the same gate laws, do not come where these have
        come ``(G,)``, nor nearer: they have several stable states, or keep any.

        They begin with states of the same size and random signs, the same for both copies.
        """
        units, field, means = found.units, found.field.now(), list[Tensor]()
        normal = torch.special.ndtri(self.draws.uniform(len(names)))
        # by weight: units drawn for their rare biases have states far larger than most
        sizes = {name: units.mean(units.states[name].square()).mean(0, keepdim=True).sqrt() for name in names}
        begun = {
            name: (sizes[name] * one).expand_as(units.states[name]) for name, one in zip(names, normal, strict=True)
        }
        units = replace(units, states={**units.states, **begun}).taken(self.draws.order(None))
        for _ in range(2):
            record = []
            for step in range(found.steps // 2):
                units = self.step(units, field)
                if step >= found.steps // 4:
                    record.append(self.measure(units))
            means.append(torch.stack(record).mean(0))
        q = found.mean[..., 1:2].mean(1).clamp(min=1e-14)
        scale = torch.cat((q.sqrt(), q, q), -1)
        gaps = torch.stack(means) - found.mean
        means_of_gaps, errors = over_replicates(gaps.movedim(2, 0))
        (earlier, later), noise = means_of_gaps.abs(), errors[1]
        return ((later > torch.maximum(4 * noise, _SAME_MOMENTS * scale)) & (later >= earlier / 2)).any(-1)

    def _block(self, units: Units, field: Field, steps: int, known: StateLaws) -> tuple[Units, Field, Tensor]:
        """Some steps, the mean of the field over their second half, and the moments at its steps.

        The moments ``(S, G, R, 3 + 3 K)`` are those of the state that is read, then of each of K states with closed
        laws.
        """
        fields, record = [], []
        for step in range(steps):
            if step % _REFRESH == 0:
                units = self.refreshed(units, known)
            units = self.step(units, field)
            if step >= steps // 2:
                fields.append(field.now())
                moments = [self.measure(units), *map(units.moments, self.structure.closed)]
                record.append(torch.cat(moments, -1))
        return units, Field.mean(fields), torch.stack(record)

    def _beyond(self, found: Tensor, units: Units, known: StateLaws) -> list[Tensor]:
        """How far the sampled moments ``found`` of such states are from those known: noisy as what is measured is."""
        gaps = []
        for names, law in known.items():
            if law.exact and bool(law.known.all()):
                for name, moments in zip(names, law.of_units(units).moments(), strict=True):
                    place = 3 * self.structure.closed.index(name)
                    gap = found[..., place : place + 3] - torch.cat([units.mean(value) for value in moments], -1)
                    if not law.exact_pair:
                        gap[..., 2] = gap[..., 1]  # the pair is as far off as one copy
                    gaps.append(gap)
        return gaps

    def _warm(self, units: Units, field: Field, rounds: int) -> tuple[Units, StateLaws]:
        """Start the states with closed laws from what the present gate law gives them; repeat as the law follows.

        Without it a state with time scale 1000 would need thousands of steps to settle. Two copies have other inputs at
        first: with equal ones they would be next to the fixed point C = 1, which they leave slowly.
        """
        by_law = self.structure.closed and not self.laws.remembered
        apart = self.laws.input_correlation.clamp(max=0.0) if by_law else None
        for _ in range(2):
            units = self.step(units, field, apart)
        known: StateLaws = {}
        if not self.structure.closed:
            return units, known
        record = [self.measure(units)]
        while (units.copies == 2 and len(record) <= rounds) or not self._is_warm(record, known):
            before, known = known, self.state_laws(units, field.now(), known)
            if known is before:
                break
            for names, law in known.items():
                own = law.of_units(units)
                units = own.redrawn(self.draws, units, names, own.known).taken(self.draws.order(None))
            units = self.step(units, field)
            record.append(self.measure(units))
        return units, known

    def _is_warm(self, record: list[Tensor], known: StateLaws) -> bool:
        """Whether the moments ``(G, R, 3)`` of these rounds have settled as far as steps do not do it better."""
        rounds = len(record) - 1
        if any(bool((law.known & (law.loss < SLOW)).any()) for law in known.values()):
            # Steps hardly move such a state, so rounds have to find the fixed point, however slowly they do.
            if rounds < SLOW_ROUNDS or rounds & (rounds - 1):
                return False
            before, after = torch.stack(record[-(rounds // 2) :]).chunk(2)
            return rounds >= MOST_ROUNDS or _unchanged(before.mean(0), after.mean(0))
        if rounds < 1:
            return False
        change, q = (record[-1] - record[-2]).mean(1).abs(), record[-1][..., 1:2].mean(1)
        return rounds >= WARM_ROUNDS or bool((change <= _SAME_MOMENTS * q).all())

    def _frozen(self, units: Units, known: StateLaws) -> Tensor:
        """Where more than a sprinkling of units lose nothing ``(G,)``: no fixed point, or one of many."""
        found = torch.zeros(self.laws.batch, dtype=torch.bool)
        for law in known.values():
            share = units.mean(law.of_units(units).frozen.to(torch.float64).expand(self.draws.shape))
            found |= share.mean(1)[:, 0] > _FROZEN_SHARE
        return found


def controlled(mean: Tensor, controls: Sequence[Tensor]) -> Tensor:
    """Means ``(G, R, 3)`` less what moves with the controls ``(G, R, 3)``, by regression over replicates.

    Not where rounding would make a second moment negative, as of a state that dies out.
    Source: control variates, Owen 2013, chapter 8.
    """
    sampled = mean
    for control in controls:
        spread = control - control.mean(1, keepdim=True)
        together = ((mean - mean.mean(1, keepdim=True)) * spread).sum(1, keepdim=True)
        alone = spread.square().sum(1, keepdim=True)
        mean = mean - torch.where(alone > 0, together / alone.clamp(min=1e-300), 0.0) * control
    return torch.where(mean[..., 1:2].mean(1, keepdim=True) >= 0, mean, sampled)


def _unchanged(before: Tensor, after: Tensor) -> bool:
    """Whether moments ``(G, R, 3)`` differ by no more than two standard errors anywhere."""
    change, error = over_replicates((after - before).movedim(1, 0))
    return bool((change.abs() <= torch.maximum(2 * error, _SAME_MEAN * after[..., 1:2].mean(1))).all())


def _mixing(units: Units, known: StateLaws) -> Tensor:
    """Steps ``(G,)`` after which units that are all alike have lost the Gaussian that they started from."""
    steps = torch.zeros(1, dtype=torch.float64)
    for law in known.values():
        if not units.offsets:
            steps = torch.maximum(steps, torch.where(law.gaussian, 0.0, 1 / law.loss.clamp(min=1e-3)).amax((1, 2)))
    return steps.clamp(max=_LONGEST_MIXING)


def _growing(means: list[Tensor], ends: list[int]) -> Tensor:
    """Whether Q grew steadily over the last blocks ``(G,)``: by more than a power 0.6 of time, 0.9 at first."""
    count = 3 if ends[-1] < 2 * _GROWTH_SHOWS else 4
    if ends[-1] < _GROWTH_SHOWS or len(means) <= count:
        return torch.zeros(means[0].shape[0], dtype=torch.bool)
    q = torch.stack([mean[..., 1].mean(1) for mean in means[-count:]]).clamp(min=1e-14).log()
    middles = [0.25 * ends[j - 1] + 0.75 * ends[j] for j in range(-count, 0)]
    power = q.diff(dim=0) / torch.tensor(middles, dtype=torch.float64).log().diff()[:, None]
    return (power >= (0.9 if count == 3 else 0.6)).all(0)


def _drifting(means: list[Tensor]) -> Tensor:
    """Whether Q moved over the last two doublings ``(G,)``, beyond two standard errors each, and over the later by half
    of the earlier or more: then as much is to come again at least, as where it grows like the logarithm of time."""
    if len(means) < 3:
        return torch.zeros(means[0].shape[0], dtype=torch.bool)
    q = torch.stack(means[-3:])[..., 1]
    change, noise = over_replicates(q.diff(dim=0).movedim(-1, 0))
    shown = (change.abs() > torch.maximum(2 * noise, _SAME_MEAN * q[-1].mean(-1))).all(0)
    earlier, later = change
    return shown & (earlier * later > 0) & (later.abs() >= earlier.abs() / 2)


def _alternating(q: Tensor) -> Tensor:
    """Whether Q ``(S, G, R)`` goes up and down from step to step ``(G,)``, beyond four standard errors and 2 %."""
    gap, noise = over_replicates((q[0::2].mean(0) - q[1::2].mean(0)).movedim(-1, 0))
    changes = q.mean(-1).diff(dim=0)
    turns = (changes[1:] * changes[:-1]).mean(0) < 0  # a Q that fades differs between odd and even steps too
    return turns & (gap.abs() > torch.maximum(4 * noise, _ALTERNATES * q.mean((0, -1)).clamp(min=1e-14)))


def _agreement(last: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Residual, whether two block means agree, and the relative standard error of Q; each ``(G,)``."""
    q, q_error = over_replicates(mean[..., 1].movedim(1, 0))
    q = q.clamp(min=1e-14)
    scale = torch.stack((q.sqrt(), q, q), -1)
    change, noise = over_replicates((mean - last).movedim(1, 0))
    gap = change.abs()
    bounded = q < _UNBOUNDED
    residual = torch.where(bounded, (gap / scale).amax(-1), 1.0)  # as of what grows: where it is held it would agree
    agree = ((gap <= _SAME_MEAN * scale) | ((gap <= 4 * noise) & (noise <= 0.05 * scale))).all(-1)
    return residual, agree & bounded, q_error / q
