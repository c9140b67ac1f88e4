"""What `isornn.memory` says of data whose memory is known."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import isornn
from isornn.lookback import rows
from isornn.lookback.measure import _finding
from isornn.lookback.record import GROWING, NOTHING, NOTHING_READ, TOO_FEW
from isornn.lookback.rows import DataError
from isornn.lookback.scoring import Scored
from isornn.lookback.sparse import LEVEL


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(sequences: int, steps: int, features: int = 1) -> Tensor:
    return torch.randn(sequences, steps, features, generator=drawn())


def signs(sequences: int, steps: int) -> Tensor:
    return torch.randint(0, 2, (sequences, steps, 1), generator=drawn()) * 2.0 - 1


def test_one_sample_of_noise() -> None:
    x = noise(120, 100)
    found = isornn.memory(x, x[:, -41, 0])
    assert found.needed == 45 and found.lengths[found.lengths.index(45) - 1] == 32
    assert found.scores[found.lengths.index(32)] < 0.1 and found.scores[-1] == pytest.approx(1)


def test_a_product_of_two_signs_far_back() -> None:
    x = signs(200, 100)
    found = isornn.memory(x, (x[:, -60, 0] * x[:, -55, 0] > 0).long())
    assert (found.needed, found.score) == (64, "Brier skill")


def test_what_two_kinds_of_regression_explain_together() -> None:
    x = noise(300, 30)
    found = isornn.memory(x, x[:, -1, 0].abs() + 0.4 * x[:, -21, 0])
    near, far = (found.scores[found.lengths.index(length)] for length in (16, 23))
    assert found.needed == 23 and near < 0.75 < 0.9 < far


def test_what_a_search_adds_to_another_regression() -> None:
    """The kernel of one step finds a wave that lags, squares and products do not make, the search what is far back.
    What both see counts once."""
    x = noise(300, 30)
    found = isornn.memory(x, (3 * x[:, -1, 0]).cos() + x[:, -1, 0] + 0.4 * x[:, -21, 0])
    near, far = (found.scores[found.lengths.index(length)] for length in (16, 23))
    assert found.needed == 23 and 0.8 < near < 0.92 < 0.95 < far


@pytest.mark.parametrize(("scale", "offset"), [(1, 1e8), (1e60, 0), (1e-60, 0), (1e307, 0), (1e-310, 0)])
def test_units_do_not_count(scale: float, offset: float) -> None:
    x = noise(100, 30).double()
    y, shifted = x[:, -8, 0], scale * x + offset
    of_inputs = isornn.memory(shifted, y)
    of_targets = isornn.memory(x, scale * y + offset)
    assert of_inputs.needed == of_targets.needed == isornn.memory(x, y).needed == 8
    assert of_inputs.scores == pytest.approx(isornn.memory(x, y).scores, abs=1e-3)


def test_whole_numbers_that_differ_by_less_than_float32_resolves() -> None:
    stamps = 1_700_000_000 + (3 * noise(100, 30)).round().long()
    found = isornn.memory(stamps, stamps[:, -8, 0].double())
    assert found.needed == 8 and found.scores[-1] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("stride", [1, 7, 25])
def test_overlapping_windows_are_refused(stride: int) -> None:
    """Between neighbours, slow noise is predicted from inputs that it has nothing to do with."""
    series, slow = noise(1, 700)[0], torch.randn(730, generator=drawn(1)).unfold(0, 31, 1).mean(-1)
    windows = series.unfold(0, 50, stride).transpose(1, 2)
    ends = slow[49::stride][: len(windows)]
    apart = -(-50 // stride)
    with pytest.raises(DataError, match=rf"overlap.*last {50 - stride} steps.*batch\[::{apart}\]"):
        isornn.memory(windows, ends)
    assert isornn.memory(windows[::apart], ends[::apart]).needed is None


@pytest.mark.parametrize(
    "series", [noise(1, 700, 1)[0], noise(1, 700, 3)[0], signs(1, 700)[0]], ids=["noise", "features", "signs"]
)
def test_overlapping_windows_are_refused_in_any_order(series: Tensor) -> None:
    """As a shuffling loader or a random split has them."""
    slow = torch.randn(730, generator=drawn(1)).unfold(0, 31, 1).mean(-1)
    some = torch.randperm(650, generator=drawn(2))[:300]
    windows = series.unfold(0, 50, 1).transpose(1, 2)
    with pytest.raises(DataError, match=r"overlap.*shuffled windows.*begin 50 steps apart"):
        isornn.memory(windows[some], slow[49:][some])


@pytest.mark.parametrize(("sequences", "steps", "symbols"), [(32, 10, 2), (300, 10, 5), (3000, 10, 5), (1024, 20, 2)])
def test_symbols_that_are_alike_by_chance_are_no_windows(sequences: int, steps: int, symbols: int) -> None:
    for seed in range(5):
        x = torch.randint(symbols, (sequences, steps), generator=drawn(seed))
        rows._check_apart(x)


def test_copies_of_a_sequence_count_as_one() -> None:
    """As a rare class that is there several times: a copy is not predicted by what was fitted to the other."""
    x, y = noise(150, 40), torch.randn(150, generator=drawn(1))
    twice = isornn.memory(x.repeat(2, 1, 1), y.repeat(2))
    assert (twice.needed, twice.sequences, twice.rows) == (None, 150, 300)
    assert isornn.memory(x.repeat(2, 1, 1), x[:, -6, 0].repeat(2)).needed == 6
    few = torch.randint(2, (200, 6), generator=drawn())  # 64 different ones, alike by chance
    found = isornn.memory(few, few[:, -3])
    assert (found.needed, found.sequences) == (3, 200)


def test_sequences_that_begin_or_stay_alike_are_no_windows() -> None:
    x = torch.zeros(200, 30, 1)
    x[:, 10:20] = noise(200, 10)
    assert isornn.memory(x, x[:, 15, 0]).needed == 16
    rows._check_apart(noise(200, 1).expand(200, 30, 1))
    rows._check_apart(noise(200, 5).repeat(1, 6, 1))
    events = (noise(200, 30) > 2.5).float()
    events[:, 20] = signs(200, 1)[:, 0]
    assert isornn.memory(events, events[:, 20, 0]).needed == 11


@pytest.mark.parametrize("spread", [0.0, 10.0, 30.0])
def test_series_at_unlike_levels_need_what_they_need_at_one(spread: float) -> None:
    """A period of 24 in noise: by least squares the error from 24 lags is a third of that from one, also where levels
    make up nearly all of the target's variance."""
    generator, steps = torch.Generator().manual_seed(0), torch.arange(121.0)
    phase = torch.randint(0, 24, (200, 1), generator=generator)
    level = spread * torch.randn(200, 1, generator=generator)
    noise = 0.1 * torch.randn(200, 121, generator=generator)
    series = level + torch.sin(2 * torch.pi * (steps + phase) / 24) + noise
    found = isornn.memory(series[:, :-1, None], series[:, -1], generator=generator)
    assert found.needed is not None and 12 <= found.needed <= 32


def test_one_step_is_said_as_one() -> None:
    x = noise(100, 5)
    assert str(isornn.memory(x, x[:, -1, 0])).startswith("The last step of the inputs is enough.")


def test_a_target_at_each_step_and_symbols() -> None:
    x = torch.randint(0, 3, (60, 10), generator=drawn())
    y = torch.full_like(x, -100)  # torch's losses ignore it
    y[:, 5:] = x[:, :-5]
    found = isornn.memory(x, y)
    assert (found.needed, found.sequences, found.rows) == (6, 60, 300)


def test_padding_is_not_read() -> None:
    x, lengths = noise(120, 50), torch.randint(30, 51, (120,), generator=drawn())
    y = x[torch.arange(120), lengths - 21, 0]
    x[torch.arange(50) >= lengths[:, None]] = torch.nan
    found = isornn.memory(x, y, lengths=lengths)
    assert found.needed == 23 and found.whole
    assert found == isornn.memory(x.numpy(), y.numpy(), lengths=lengths.tolist())


@pytest.mark.parametrize("classes", [0, 3])
def test_nothing_is_found_where_nothing_is(classes: int) -> None:
    x, draw = noise(150, 12, 2), drawn(1)
    y = torch.randint(0, classes, (150,), generator=draw) if classes else torch.randn(150, 2, generator=draw)
    found = isornn.memory(x, y)
    assert (found.needed, found.reason) == (None, NOTHING) and 0.3 < found.detectable < 0.4
    assert "explained" in str(found)


def test_what_is_said_to_be_detectable_is_found() -> None:
    """In 19 of 20 draws, as the message of a target that nothing predicts says."""
    sequences, steps = 150, 12
    share = isornn.memory(noise(sequences, steps), torch.randn(sequences, generator=drawn(1))).detectable
    found = []
    for seed in range(12):
        draw = drawn(seed)
        x, rest = torch.randn(sequences, steps, 1, generator=draw), torch.randn(sequences, generator=draw)
        found.append(isornn.memory(x, share**0.5 * x[:, -7, 0] + (1 - share) ** 0.5 * rest).needed)
    assert sum(needed in (8, 11) for needed in found) >= 11, found


def test_choosing_among_many_does_not_flatter() -> None:
    """Over 12 draws of noise the mean score of the best is not above 0."""
    best = []
    for seed in range(12):
        draw = drawn(seed)
        x, y = torch.randn(60, 8, 1, generator=draw), torch.randn(60, generator=draw)
        best.append(isornn.memory(x, y, generator=draw).scores[-1])
    assert np.mean(best) < 2 * np.std(best) / len(best) ** 0.5


@pytest.mark.parametrize("sequences", [1, 2, 5, 18])
def test_too_few_sequences(sequences: int) -> None:
    x = noise(sequences, 1000)
    found = isornn.memory(x, x[:, -501, 0])
    assert (found.needed, found.reason) == (None, TOO_FEW) and found.detectable > 0.5
    assert str(found).startswith("No length: too few sequences to tell")


def test_few_long_sequences_can_be_cut() -> None:
    """As the message of the whole says."""
    x = noise(2, 3000)
    y = x[..., 0].roll(5, 1)
    whole = isornn.memory(x, y)
    assert whole.reason == TOO_FEW
    assert str(whole).endswith("Long sequences can be cut into more, which must not overlap.")
    assert isornn.memory(x.reshape(60, 100, 1), y.reshape(60, 100)).needed == 6
    assert "cut" not in str(isornn.memory(x[:, :40], x[:, 5, 0]))


def test_still_growing_where_it_may_not_look_further() -> None:
    x = noise(120, 40)
    y = x[:, -30:, 0].sum(1)
    found = isornn.memory(x, y, longest=16)
    assert (found.needed, found.reason, found.whole) == (None, GROWING, False)
    assert str(found).startswith("More than 16 steps")
    assert isornn.memory(x, y).needed == 32


def test_nothing_in_the_steps_that_were_read() -> None:
    """The sample is found where it is read, and the answer says no more of what is not."""
    x = noise(120, 40)
    found = isornn.memory(x, x[:, -11, 0], longest=8)
    assert (found.needed, found.reason, found.whole) == (None, NOTHING_READ, False)
    said = str(found)
    assert said.startswith("No length: nothing in the last 8 steps predicts the target.\n")
    assert "Earlier steps were not read; a larger `longest` reads them." in said and "far back" not in said
    assert isornn.memory(x, x[:, -11, 0]).needed == 11
    assert "in the last step predicts" in str(isornn.memory(x, x[:, -11, 0], longest=1))


def test_scores_have_their_errors_however_small_unless_these_are_rounding() -> None:
    x = noise(120, 10)
    exact, near = isornn.memory(x, x[:, -1, 0]), isornn.memory(x, x[:, -1, 0] + 1e-4 * noise(120, 10)[:, 0, 0])
    assert exact.errors[0] < 1e-13 and "R^2 1\n" in str(exact)
    assert 1e-12 < near.errors[0] < 1e-6 and "R^2 0.9999999" in str(near) and " ± " in str(near)


def test_equal_generators_give_equal_answers_and_it_travels_as_json() -> None:
    x = noise(60, 20)
    found = isornn.memory(x, x[:, -5, 0], generator=drawn(3))
    assert found == isornn.memory(x, x[:, -5, 0], generator=drawn(3))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["needed"] == found.needed == 6


def test_progress_goes_from_0_to_1() -> None:
    said: list[float] = []
    x = noise(40, 20)
    isornn.memory(x, x[:, -5, 0], progress=said.append)
    assert said == sorted(said) and 0 < said[0] < 0.1 and said[-1] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": torch.zeros(20, 10)}, r"batch: shape .* whole numbers.*batch\[\.\.\., None\]"),
        ({"batch": torch.full((20, 10, 1), torch.nan)}, "batch: NaN.*; fill in"),
        ({"batch": "text"}, "batch: str is not allowed"),
        (
            {"batch": torch.nested.nested_tensor([torch.zeros(9, 1)] * 20, layout=torch.jagged)},
            "batch: a nested tensor",
        ),
        ({"target": torch.zeros(19)}, "target: shape .* 20 sequences"),
        ({"target": torch.zeros(20)}, "target: all entries are the same"),
        ({"target": torch.full((20,), torch.nan)}, "target: none is left"),
        ({"target": torch.full((20,), -100)}, "target: none is left"),
        ({"target": torch.full((20,), torch.inf)}, "target: infinite"),
        ({"target": torch.zeros(20, 3, dtype=torch.int64)}, "target: .* one class"),
        ({"lengths": torch.full((20,), 11)}, "lengths: 11 to 11 .* 10 steps"),
        ({"lengths": torch.ones(3, dtype=torch.int64)}, "lengths: shape"),
        ({"longest": 0}, "longest: 0 is not allowed"),
        ({"longest": 5.5}, "longest: 5.5 is not allowed"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"batch": noise(20, 10), "target": torch.randn(20, generator=drawn())}
    with pytest.raises(DataError, match=message):
        isornn.memory(**(good | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(("ratio", "reason"), [(31.0, TOO_FEW), (33.0, ""), (1.4, NOTHING)])
def test_few_sequences_need_a_score_of_more_standard_errors(ratio, reason):
    # Student's t with 2 degrees of freedom exceeds 31.6 once in 2,000 times: one side, at .0005.
    rows: Any = SimpleNamespace(sequences=3, whole=True)
    level = LEVEL / 0.0005
    assert level == pytest.approx(round(level))
    scored = [Scored(torch.zeros(1, 1), 0.01 * ratio, 0.01, 1)] * round(level)
    assert _finding(range(1, round(level) + 1), scored, rows)[1] == reason


def test_forecasts_of_as_many_values_as_steps() -> None:
    """The same season again needs all of it; taken for targets of the steps, each would be the input itself."""
    x = noise(300, 24)
    season = x[:, :, 0] + 0.1 * torch.randn(300, 24, generator=drawn(1))
    assert isornn.memory(x, season, per_step=False).needed == 24
    found = isornn.memory(x, season)
    assert found.needed == 1 and found.per_step and "one for each step" in str(found)
    with pytest.raises(DataError, match=r"per_step: True is not allowed; the target has shape \(300, 23\)"):
        isornn.memory(x, season[:, :23], per_step=True)


def test_features_too_many_to_be_searched_leave_no_certainty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_NUMBERS", 1 << 12)
    x = noise(100, 80, 120)
    found = isornn.memory(x, x[:, -10, 7])
    assert found.directions == (1 << 12) // 80
    assert found.needed is None
    assert "sure" not in str(found) and "probably" not in str(found) and "51 combinations" in str(found)


def test_features_that_their_dtype_does_not_resolve_are_named() -> None:
    x = noise(200, 12)
    with pytest.warns(UserWarning, match="^1 of 1 features of the inputs vary by less than torch.float32") as caught:
        isornn.memory(x + 2e6, x[:, -4, 0])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("longest", ["5", True, 2.5, 0])
def test_longest_is_a_number_of_steps(longest: Any) -> None:
    with pytest.raises(DataError, match="longest: .* is not allowed"):
        isornn.memory(noise(50, 12), torch.arange(50.0), longest=longest)


def test_generator_is_one() -> None:
    with pytest.raises(ValueError, match="generator: 5 is not allowed"):
        isornn.memory(noise(50, 12), torch.arange(50.0), generator=5)  # type: ignore[arg-type]
