"""What a checkpoint says of a run's data: other data are noticed, the same are not refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isornn.tasks.ucr import Series, SeriesSet
from isornn.training.data_mark import DataMark
from isornn.training.problems import Problem


def marked(change: Callable[[Tensor], Tensor], scale: float, level: float = 0.0) -> DataMark:
    """Of 40 series of 100 steps with two features."""
    drawn = torch.randn(40, 100, 2, generator=torch.Generator().manual_seed(0)) * scale + level
    part = list(change(drawn)), torch.arange(40) % 2
    series = SeriesSet("drawn", ["0", "1"], part, part)
    return DataMark.of(Problem(Series(series, "train"), Series(series, "valid"), Series(series, "test")))


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "other series": lambda x: x.roll(1, 0),
    "other order of steps": lambda x: x.flip(1),
    "other order of features": lambda x: x.flip(2),
    "shorter": lambda x: x[:, :-1],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("scale", "level"), [(1.0, 0.0), (1e-6, 0.0), (1.0, 2000.0), (1e5, 0.0)])
def test_other_data_are_noticed_at_any_scale(change: str, scale: float, level: float) -> None:
    """As of potentials in volts."""
    mark = marked(lambda x: x, scale, level)
    assert not mark.agrees_with(list(marked(CHANGES[change], scale, level).numbers))


def test_other_preprocessing_is_noticed_and_rounding_is_not() -> None:
    mark = marked(lambda x: x, 1.0)
    assert not mark.agrees_with(list(marked(lambda x: 2 * x, 1.0).numbers))
    assert not mark.agrees_with(list(marked(lambda x: x + 1, 1.0).numbers))
    assert mark.agrees_with(list(marked(lambda x: x * (1 + 1e-6), 1.0).numbers))


@pytest.mark.parametrize("constant", [0.1, 1e5 / 3, 0.0])
def test_constants_have_no_order(constant: float) -> None:
    """What rounding leaves of their deviations is not the same on every machine."""
    _, _, mean, deviation, order, *_ = marked(lambda x: torch.full_like(x, constant), 1.0).numbers
    assert mean == pytest.approx(constant, rel=1e-6)
    assert abs(deviation) < 1e-9 * max(constant, 1.0) and abs(order) < 1e-6


def test_data_that_are_not_finite_agree_with_themselves() -> None:
    def broken(x: Tensor) -> Tensor:
        x[:, ::3], x[:, 1::3], x[:, 2::3] = torch.nan, torch.inf, -torch.inf
        return x

    mark = marked(broken, 1.0)
    assert mark.agrees_with(list(mark.numbers))


@pytest.mark.parametrize("kept", [None, [], ["1"] * 226, {"mark": 1}])
def test_what_is_no_mark_is_refused(kept: object) -> None:
    assert not marked(lambda x: x, 1.0).agrees_with(kept)
