"""How a norm falls with the number of steps: its rate, its time scale and its reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from isornn.diagnosis.facts import Profile
from isornn.diagnosis.json_record import single, thinned
from isornn.formatting import counted
from isornn.theory import Quantity
from isornn.theory.quantity import jackknife, time_scale

# A change that is smaller than this part of another is lost in float32's rounding.
RESOLUTION = 1e-7
_FEWEST, _GROUPS = 2, 16
MEASURABLE = 3  # steps
BEGINS_ANEW = (
    "a state that the model changes between two calls, by normalisation, zoneout or decay, begins a new one: the "
    "gradient of the layer alone is not the model's there"
)
TOO_SHORT = f"the sequences are too short: a rate needs at least {MEASURABLE} steps"
NOTHING_ARRIVES = "exactly 0: nothing arrives from the step before"


def separate(calls: int, sequences: int, steps: int) -> str:
    """What calls were that could not be joined.

    >>> separate(40, 20, 1)
    '40 calls make 20 separate sequences, of 1 step at most'
    """
    return f"{counted(calls, 'call')} make {sequences} separate sequences, of {counted(steps, 'step')} at most"


def profile_of(logs: Mapping[str, Tensor]) -> Profile:
    """From ln norms (lags, B) by state and of ``"all"``, NaN where a sequence has no such lag.

    >>> decay = -0.5 * torch.arange(20.0, dtype=torch.float64)
    >>> found = profile_of({"all": torch.stack([decay, decay + 1], 1)})
    >>> round(found.xi.number(), 6), round(found.reach.number(), 6), found.window
    (1.0, 1.0, (1, 19))
    """
    mean = {name: _root_mean_square(values) for name, values in logs.items()}
    lags = thinned(len(mean["all"]))
    window = _window(mean["all"])
    rate, misfit = _fitted(logs["all"], window)
    others = [_root_mean_square(left) for left in _leaving_out(logs["all"])]
    chi = Quantity.of((2 * rate.value).exp(), 2 * (2 * rate.value).exp() * rate.stderr, dict(rate.reasons))
    return Profile(
        lags=lags,
        log_norm={name: values[lags] for name, values in mean.items()},
        spread=_spread(logs["all"])[lags],
        rate=rate,
        xi=time_scale(chi),
        window=window,
        misfit=misfit,
        reach=_reach(mean["all"], others),
        ratio_error=_ratio_error(mean["all"], others)[lags],
    )


def _leaving_out(logs: Tensor) -> list[Tensor]:
    """(lags, B) without each of at most 16 groups of sequences; none of a single sequence."""
    groups = logs.tensor_split(min(logs.shape[1], _GROUPS), dim=1)
    each = range(len(groups)) if len(groups) > 1 else ()
    return [torch.cat([group for number, group in enumerate(groups) if number != left], 1) for left in each]


def _ratio_error(mean: Tensor, others: Sequence[Tensor]) -> Tensor:
    """By leaving out; NaN where that is unknown."""
    if not others or len(mean) < 2:
        return torch.full_like(mean, torch.nan)
    return jackknife(torch.stack([one - one[1] for one in (mean, *others)]))[1]


def _root_mean_square(logs: Tensor) -> Tensor:
    """(lags,) of (lags, B): ``ln(mean exp(2 ln n)) / 2`` over the sequences that have the lag."""
    known = ~logs.isnan()
    filled = torch.where(known, 2 * logs, -torch.inf)
    return (filled.logsumexp(1) - known.sum(1).double().log()) / 2


def _spread(logs: Tensor) -> Tensor:
    known = ~logs.isnan() & ~logs.isinf()
    count = known.sum(1)
    filled = torch.where(known, logs, 0.0)
    mean = filled.sum(1) / count.clamp(min=1)
    square = torch.where(known, (logs - mean.unsqueeze(1)).square(), 0.0).sum(1) / (count - 1).clamp(min=1)
    return torch.where(count > 1, square.sqrt(), torch.nan)


def _window(mean: Tensor) -> tuple[int, int] | None:
    """From lag 1 to the lag at which float32 no longer resolves the value relative to lag 1; at least two steps."""
    if len(mean) <= 1 + _FEWEST or mean[1 + _FEWEST].isinf():
        return None
    seen = mean[1:] - mean[1] >= math.log(RESOLUTION)
    gone = (~seen).nonzero()
    last = len(mean) - 1 if len(gone) == 0 else int(gone[0])
    return 1, max(last, 1 + _FEWEST)


def _fitted(logs: Tensor, window: tuple[int, int] | None) -> tuple[Quantity, float | None]:
    if window is None:
        too_short = len(logs) <= 1 + _FEWEST
        return single(math.nan, 0.0, {TOO_SHORT if too_short else NOTHING_ARRIVES: True}), None
    first, last = window
    inner = logs[first : last + 1]
    # Sequences that end within the window, or from which nothing arrives, have no slope over it.
    whole = inner[:, inner.isfinite().all(0)]
    if whole.shape[1] == 0:
        return single(math.nan, 0.0, {TOO_SHORT: True}), None
    steps = torch.arange(len(whole), dtype=torch.float64) - (len(whole) - 1) / 2
    centred = whole - whole.mean(0)
    slopes = (steps.unsqueeze(1) * centred).sum(0) / steps.square().sum()
    misfit = float((centred - steps.unsqueeze(1) * slopes).square().mean().sqrt())
    error = _error(slopes) if len(slopes) > 1 else _error(_block_slopes(whole[:, 0]))
    return single(float(slopes.mean()), error, {}), misfit


def _block_slopes(values: Tensor) -> Tensor:
    edges = torch.linspace(0, len(values) - 1, min(8, len(values) - 1) + 1).round().long()
    return values[edges].diff() / edges.diff()


def _error(samples: Tensor) -> float:
    return float(samples.std() / math.sqrt(len(samples)))


def _reach(mean: Tensor, others: Sequence[Tensor]) -> Quantity:
    """Of the norms (lags,), with the error that leaving out sequences gives."""
    found = _fallen(mean)
    if found.number() is None:
        return found
    each = torch.stack([_fallen(one).value for one in (mean, *others)])
    error = float(jackknife(each)[1]) if others else math.inf
    return single(float(found.value), error if math.isfinite(error) else math.inf)


def _fallen(mean: Tensor) -> Quantity:
    if len(mean) < MEASURABLE:
        return single(math.nan, 0.0, {TOO_SHORT: True})
    if mean[1].isinf():
        return single(math.nan, 0.0, {NOTHING_ARRIVES: True})
    fallen = 2 * (mean[1:] - mean[1])
    below = (fallen <= -1).nonzero()
    if len(below) == 0:
        measured = len(mean) - 2
        return single(math.inf, 0.0, {f"beyond the {measured} steps measured": True})
    place = int(below[0])
    above, under = float(fallen[place - 1]), float(fallen[place])
    share = 1.0 if math.isinf(under) else (above + 1) / (above - under)
    return single(place - 1 + share, 0.0, {})
