"""The response of a stationary population to a displacement: profile, chi, and the reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from isornn.theory.population.jacobian import StateStructure, seen_states
from isornn.theory.population.renewal import Renewal, first_fall, last_live_rate, late_rate
from isornn.theory.population.tangents import BURN, Cohort, Curves, grid
from isornn.theory.population.units import Draws, Field, Laws, Units
from isornn.theory.quantity import jackknife, pooled
from isornn.theory.reasons import BEYOND, NEGATIVE, UNENDING, UNSEEN

_SHORTEST = 8
_MOST_STEPS = 1024  # of all cohorts together, unless one takes more
_LONGEST_SHOWN = 2048
_FARTHEST = 8  # times the steps allowed: how far late lags are looked at for the reach
_AHEAD = 4  # times the length asked for: how far the reach is looked for where units keep biases
_CUTS = (0.625, 0.75, 0.875)  # of the steps followed: what chi and the reach would be from so many
_GROUPS = 8  # of replicates, of which errors of profiles of states come
_TINY = 1e-280


@dataclass(frozen=True)
class Response:
    """Response of E[h_a h_b] to a change made at step 0; shaped like the batch, ``profile`` with times 0, 1, .. last.

    Args:
        profile: P_t = E[dh_a dh_b], h the state that is read.
        states: the same for every state by name, ``E[ds_a ds_b]``; ``states_stderr`` has their standard errors.
        chi: growth per step: of the exponential that the response tends to, or, where it is not one, late in the
            profile.
        reach: steps after step 1 until P falls to P_1 / e; equal to -1/ln chi where the decay is exponential from
            the start; infinity where it does not fall, or not within the steps followed: see `without_reach`.
        exponential: whether the decay tends to an exponential within the profile. With biases redrawn it always
            does; with fixed biases the rates of successive windows are compared. Where units differ only by inputs
            that are correlated over time: whether it is ``resolved``.
        stderr: of ``chi``, ``log_chi``, ``reach`` and ``profile``.
        effective_share: the smallest effective sample share met before resampling; below .05 trust little.
        cohorts: how many were averaged.
        steps: steps that cohorts were followed; the profile beyond goes on at the kernel's last rate, or at each
            unit's own.
        resolved: whether chi no longer changes with the steps followed.
        feedback: what one unit of P gives back to P in all later steps, the slope of the map of ``E[h_a h_b]`` to what
            the states become that settle under it; below 1 at a stable fixed point.
        source_terms: for each group of gates asked for, by state, the response ``(R + 1, *batch, T)`` to source terms
            of unit size in what these gates read at step 0, in place of the displacement: over all replicates, then
            without each.
    """

    profile: Tensor
    states: dict[str, Tensor]
    states_stderr: dict[str, Tensor]
    chi: Tensor
    reach: Tensor
    exponential: Tensor
    stderr: dict[str, Tensor]
    effective_share: Tensor
    cohorts: int
    steps: int
    resolved: Tensor
    feedback: Tensor
    source_terms: tuple[dict[str, Tensor], ...] = ()

    @property
    def without_reach(self) -> dict[str, Tensor | bool]:
        """Why there is no reach, or an infinite one: nothing of a displaced state is seen, or the response does not
        fall, or takes more steps than followed."""
        infinite, displaced = torch.isinf(self.reach), torch.stack([curve[..., 1] for curve in self.states.values()])
        unseen = (self.profile[..., 1] == 0) & (displaced > 0).any(0)
        return {UNSEEN: unseen, UNENDING: infinite & (self.chi >= 1), BEYOND: infinite, NEGATIVE: self.is_negative}

    def with_error_of_field(self, own: Response) -> Response:
        """This response, under one field, with the field's error in its own.

        ``own`` is the response under each replicate's own field, where replicates differ by as much more.
        """
        more = self.cohorts / own.cohorts  # sampling alone makes so much of the variance under one field
        widened = partial(_with_variance_beyond, more)
        states = {name: widened(error, own.states_stderr[name]) for name, error in self.states_stderr.items()}
        stderr = {name: widened(error, own.stderr[name]) for name, error in self.stderr.items()}
        return replace(self, stderr=stderr, states_stderr=states)

    def memory(self) -> Tensor:
        """The longest reach of any state; where it is beyond the profile what it would be if the decay went on as it is
        on average."""
        found = [_or_onwards(self.reach, self.profile)]
        if self.profile.shape[-1] > 2:
            found += [_or_onwards(first_fall(curve), curve) for curve in self.states.values()]
        return torch.stack(found).amax(0)

    @property
    def is_negative(self) -> Tensor:
        """Whether the response one step later is below 0, beyond four standard errors."""
        return self.profile[..., 1] < -4 * self.stderr["profile"][..., 1]


def _with_variance_beyond(more: float, error: Tensor, own: Tensor) -> Tensor:
    beyond = own.square() - more * error.square()
    return torch.where(beyond > 0, (error.square() + beyond).sqrt(), error)


def _or_onwards(reach: Tensor, profile: Tensor) -> Tensor:
    first, last = profile[..., 1], profile[..., -1]
    fall = (first / last.clamp(min=_TINY)).clamp(min=_TINY).log()
    onwards = torch.where(fall > 0, (profile.shape[-1] - 2) / fall, torch.inf)
    return torch.where(reach.isfinite(), reach, torch.where(first > 0, onwards, 0.0))


def follow(
    laws: Laws,
    structure: StateStructure,
    units: Units,
    field: Field,
    draws: Draws,
    advance: Callable[[Units], tuple[Units, Tensor | None]],
    *,
    batch_shape: Sequence[int],
    length: int | None,
    max_steps: int,
    tolerance: float,
    max_cohorts: int,
    source_gates: Sequence[Sequence[str]] = (),
) -> Response:
    """Follow cohorts of a stationary population.

    ``advance`` takes stationary units on to where the next cohort starts, with what each unit loses per step where
    that is all that late lags need.
    """

    def cohort() -> Cohort:
        nonlocal units
        units, loss = advance(units)
        return Cohort(laws, structure, units, field, draws, loss)

    cohorts = [cohort()]
    steps, last = _SHORTEST, None
    if cohorts[0].by_rate:
        steps = BURN
        cohorts[0].extend(steps)
        same = torch.ones(laws.batch, dtype=torch.bool)
    else:
        while True:
            cohorts[0].extend(steps)
            renewal = _renewal(laws, [cohorts[0].curves()], rows=slice(0, 1))
            chi = _rate(laws, renewal, steps)[0]
            same = torch.zeros_like(chi, dtype=torch.bool) if last is None else _same_rate(chi, last, tolerance)
            if bool(same.any()) and not laws.fixed:
                for part in _CUTS:
                    shorter = _renewal(laws, [cohorts[0].curves()], rows=slice(0, 1), part=part)
                    same = same & _same_rate(chi, _rate(laws, shorter, steps)[0], tolerance)
            same = same & ~renewal.died[0]
            if _enough(laws, renewal, same, steps, length) or steps >= max_steps:
                break
            last, steps = chi, min(2 * steps, max_steps)
    horizon = _horizon(laws, cohorts, steps, length, max_steps)
    known: Tensor | None = None
    for count in range(1, min(max_cohorts, _MOST_STEPS // steps)):
        if count.bit_count() == 1:
            error, known = _relative_error(laws, cohorts, horizon)
            if bool((error <= tolerance).all()):
                break
        cohorts.append(cohort())
        cohorts[-1].extend(steps)
        known = None
    return _response(laws, cohorts, batch_shape, steps, length, horizon, same, source_gates, known)


def _horizon(laws: Laws, cohorts: Sequence[Cohort], steps: int, length: int | None, max_steps: int) -> int:
    """Length of the profile: what is wanted, and where late lags cost little, until the reach is in it with room."""
    wanted = max(steps, 0 if length is None else length + 1)
    if not cohorts[0].by_rate:
        return wanted
    renewal = _renewal(laws, [cohorts[0].curves()], rows=slice(0, 1)).of_classes()
    most = max(_FARTHEST * max_steps, 0 if length is None else 2 * length)
    while wanted < most and not bool((1.5 * first_fall(renewal.profile(wanted)[0, :, 0]) < wanted).all()):
        wanted *= 2
    return wanted


def _renewal(
    laws: Laws, curves: Sequence[Curves], rows: slice = slice(None), *, part: float = 1.0, grouped: bool = False
) -> Renewal:
    """Pooled over replicates (row 0) and with each replicate left out, from the first ``part`` of the curves.

    Args:
        grouped: leave out groups of replicates, which takes less of time and memory.
    """

    def of_all(values: Sequence[Tensor]) -> Tensor:
        mean = torch.stack(list(values)).mean(0)
        return pooled(_by_groups(mean) if grouped else mean)[rows]

    count = round(part * curves[0].displaced.shape[-1])
    displaced = of_all([c.displaced for c in curves])[..., :count]
    kernel = of_all([c.kernel for c in curves])[..., :count]
    within = of_all([c.within for c in curves])
    if curves[0].late is not None:
        late = of_all([c.late for c in curves if c.late is not None])
        return Renewal.with_late(displaced, kernel, within, late, grid())
    # States that nothing reads, as an average for display, have rates of their own that are not the response's.
    states = displaced[..., -len(laws.cell.states) :, :]
    return Renewal.of(displaced, kernel, within, states[..., seen_states(laws.cell, tuple(laws.gated)), :].sum(-2))


def _by_groups(values: Tensor) -> Tensor:
    """Means ``(G, groups, ...)`` of replicates ``(G, R, ...)``, each by itself where they do not share out evenly."""
    return values.unflatten(1, (_GROUPS, -1)).mean(2) if values.shape[1] % _GROUPS == 0 else values


def _rate(laws: Laws, renewal: Renewal, horizon: int) -> Tensor:
    """chi: the renewal root where the kernel decays geometrically, else the profile's late rate."""
    if laws.fixed:
        return late_rate(renewal.profile(horizon)[..., 0, :])
    rate = renewal.rate()
    if bool(rate.isnan().any()):
        profile = renewal.profile(renewal.displaced.shape[-1])[..., 0, :]
        rate = torch.where(rate.isnan(), last_live_rate(profile), rate)
    return rate


def _same_rate(chi: Tensor, last: Tensor, tolerance: float) -> Tensor:
    log = chi.clamp(min=_TINY).log()
    return (log - last.clamp(min=_TINY).log()).abs() <= tolerance * log.abs() + 1e-7


def _enough(laws: Laws, renewal: Renewal, same: Tensor, steps: int, length: int | None) -> bool:
    if laws.fixed:
        if length is not None and steps <= length:
            return False
        profile = renewal.profile(steps)[0, :, 0]
        grown = profile[:, -1] > 1e6 * profile[:, 1]
        far = length is not None and steps > _AHEAD * length
        return far or bool((grown | (1.5 * first_fall(profile) < steps)).all())
    return bool((same | renewal.died[0]).all())


def _relative_error(laws: Laws, cohorts: Sequence[Cohort], horizon: int) -> tuple[Tensor, Tensor]:
    """Relative standard error ``(G,)`` of the reach and, where there is one rate, of ln chi: the larger. And the
    profile that the reach was read from, up to the ``horizon`` where there is not one rate."""
    renewal = _renewal(laws, [c.curves() for c in cohorts]).of_classes()
    rates = torch.zeros(()) if laws.fixed else _rate(laws, renewal, horizon)
    shown = horizon if laws.fixed else renewal.displaced.shape[-1]
    profile = renewal.profile(shown)[..., 0, :]
    value, error = _jackknifed_reach(_reach(laws, profile, rates))
    found = torch.where(value.isfinite() & error.isfinite(), error / value.clamp(min=1e-12), 0.0)
    if laws.fixed:
        return found, profile
    value, error = jackknife(rates.clamp(min=_TINY).log())
    # The reach rests on single steps of the profile besides, and is content with twice the error.
    return torch.maximum(found / 2, error / value.abs().clamp(min=1e-12)), profile


def _response(
    laws: Laws,
    cohorts: Sequence[Cohort],
    shape: Sequence[int],
    steps: int,
    length: int | None,
    horizon: int,
    resolved: Tensor,
    source_gates: Sequence[Sequence[str]],
    known: Tensor | None = None,
) -> Response:
    """Of all ``cohorts``, whose profile up to the ``horizon`` may be ``known``: of long lengths it takes most time."""
    renewal = _renewal(laws, [cohort.curves() for cohort in cohorts])
    if laws.fixed:
        first = renewal.of_classes().profile(horizon)[..., 0, :] if known is None else known
        rates = late_rate(first)
    else:
        rates = _rate(laws, renewal, horizon)
        first = renewal.of_classes().profile(horizon if length is not None else _shown(rates[0], steps))[..., 0, :]
    shown = first.shape[-1] if length is None else length + 1
    chi, chi_error = jackknife(rates)
    log_error = jackknife(rates.clamp(min=_TINY).log())[1]
    reach, reach_error = _jackknifed_reach(_reach(laws, first, rates))
    profile, profile_error = jackknife(first[..., :shown])
    names = laws.cell.states
    of_states = _renewal(laws, [cohort.curves() for cohort in cohorts], grouped=True)
    states, states_error = jackknife(of_states.profile(shown)[:, :, -len(names) :])
    for part in () if cohorts[0].by_rate else _CUTS:
        # What the end of what was followed decides is no more certain than it is when that is cut off.
        shorter = _renewal(laws, [cohort.curves() for cohort in cohorts], rows=slice(0, 1), part=part)
        beyond = shorter.profile(first.shape[-1])
        cut = torch.cat([first[:1, :, :steps], beyond[:, :, 0, steps:]], -1)
        cut_rate = late_rate(cut) if laws.fixed else _rate(laws, shorter, horizon)
        chi_error = _at_least(chi_error, cut_rate[0] - chi)
        log_error = _at_least(log_error, cut_rate[0].clamp(min=_TINY).log() - chi.clamp(min=_TINY).log())
        reach_error = _at_least(reach_error, _gap_of_reaches(reach, _reach(laws, cut, cut_rate)[0]))
        profile_error = _at_least(profile_error, cut[0, :, :shown] - profile)
        gap = (beyond[0, :, -len(names) :, :shown] - states) * (torch.arange(shown) >= steps)
        states_error = _at_least(states_error, gap)
    share = torch.stack([cohort.effective_share.amin(1) for cohort in cohorts]).amin(0)
    return Response(
        profile=profile.reshape(*shape, shown),
        states=_by_name(names, states, shape),
        states_stderr=_by_name(names, states_error, shape),
        chi=chi.reshape(shape),
        reach=reach.reshape(shape),
        exponential=_exponential(laws, first, resolved, renewal.died[0]).reshape(shape),
        stderr={
            "chi": chi_error.reshape(shape),
            "log_chi": log_error.reshape(shape),
            "profile": profile_error.reshape(*shape, shown),
            "reach": reach_error.nan_to_num(nan=0.0).reshape(shape),
        },
        effective_share=share.reshape(shape),
        cohorts=len(cohorts),
        steps=steps,
        resolved=resolved.reshape(shape),
        feedback=renewal.feedback()[0].reshape(shape),
        source_terms=tuple(_source_terms(cohorts[0], renewal, gates, shape, shown) for gates in source_gates),
    )


def _by_name(names: Sequence[str], curves: Tensor, shape: Sequence[int]) -> dict[str, Tensor]:
    """Curves ``(G, states, T)`` by state, shaped like the batch."""
    return {name: curve.reshape(*shape, -1) for name, curve in zip(names, curves.unbind(1), strict=True)}


def _jackknifed_reach(reaches: Tensor) -> tuple[Tensor, Tensor]:
    """As `jackknife`; where the reach is infinite without some replicate, by its inverse and to first order."""
    value, error = jackknife(reaches)
    _, of_inverse = jackknife(1 / reaches)
    return value, torch.where(error.isfinite() | value.isinf(), error, value.square() * of_inverse)


def _gap_of_reaches(reach: Tensor, other: Tensor) -> Tensor:
    """Their difference; where only the other is infinite that of their inverses, to first order, which is ``reach``."""
    return torch.where(other.isinf() & reach.isfinite(), reach, other - reach)


def _at_least(error: Tensor, gap: Tensor) -> Tensor:
    return torch.where(gap.isfinite(), torch.maximum(error, gap.abs()), error)


def _source_terms(
    cohort: Cohort, renewal: Renewal, gates: Sequence[str], shape: Sequence[int], length: int
) -> dict[str, Tensor]:
    """By state, the response to source terms in what ``gates`` read; nothing where none of them reads anything."""
    classes = sorted({cohort.classes.index(gate) for gate in gates if gate in cohort.classes})
    rows = renewal.after_sources(classes).profile(length)
    names = cohort.laws.cell.states
    values = rows[:, :, rows.shape[2] - len(names) :].unbind(2)
    return {name: value.reshape(-1, *shape, length) for name, value in zip(names, values, strict=True)}


def _shown(chi: Tensor, steps: int) -> int:
    """Profile length that holds the reach, where chi < 1 and it fits."""
    scale = -1.0 / chi.clamp(1e-12, 1 - 1e-12).log()
    wanted = int(torch.where(chi < 1, scale, 0.0).clamp(max=_LONGEST_SHOWN).max().item() * 1.5) + 4
    return max(steps, min(wanted, _LONGEST_SHOWN))


def _reach(laws: Laws, profile: Tensor, chi: Tensor) -> Tensor:
    """First fall to 1/e, beyond the profile's end by its exponential tail where there is one."""
    found = first_fall(profile)
    if laws.fixed:
        return found
    ratio = profile[..., -1].clamp(min=_TINY) / profile[..., 1].clamp(min=_TINY)
    scale = -1.0 / chi.clamp(_TINY, 1 - 1e-15).log()
    beyond = profile.shape[-1] - 2 + (1.0 + ratio.log()) * scale
    return torch.where(found.isinf() & (chi < 1), beyond, found)


def _exponential(laws: Laws, profile: Tensor, resolved: Tensor, died: Tensor) -> Tensor:
    """Whether successive windows of the profile have one rate: within 1 % of the time scale, or 3 small errors.

    A rate with an error above 5 % is no evidence of an exponential. Units that differ only for as long as inputs are
    correlated have one rate at last, which is known where more steps do not change it. Of a response that died out
    before its rate settled none is known: units that stick, each at a rate of its own, have no common one.
    """
    if not laws.fixed and laws.remembered:
        return resolved
    if not laws.fixed:
        return resolved | ~died
    ends = (0.125, 0.25, 0.5, 1.0)
    logs = [late_rate(profile, a, b).clamp(min=_TINY).log() for a, b in pairwise(ends)]
    size = logs[-1][0].abs()
    result = late_rate(profile)[0] > 0
    for early, late in pairwise(logs):
        gap, error = jackknife(late - early)
        result &= gap.abs() <= torch.maximum(0.01 * size, 3 * error.clamp(max=0.05 / 3 * size))
    return result
