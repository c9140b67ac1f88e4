"""Starts compared by what theory says of them, from Python and as the command prints them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from isornn.cells import LSTM, Gate, Input, Peephole, Spec, SpecError, Vanilla
from isornn.cells.starts import IN_USE, TEXTBOOK
from isornn.cli.reading import sentence
from isornn.theory.analysis import analyze
from isornn.theory.compared_starts import compare, left_after, left_stderr, verdict
from shell import SIZES, answer, run


@pytest.mark.parametrize("length", [2, 3, 5])
def test_fits_is_within_a_factor_of_2(length: int) -> None:
    """What a start promises of its length, and no more: a GRU's reach is 0.61 of the length."""
    memory = Spec(Vanilla("identity"), {"h": Gate(weight_var=0.7, ensemble="orthogonal")})
    answer = analyze(memory, length=10)  # its reach is -1 / ln 0.7 = 2.8 steps
    assert verdict(answer, length) == "fits"
    assert f"within a factor of 2 of the required {length}" in sentence(answer, length)


@pytest.mark.parametrize(("length", "word"), [(30, "long"), (74, "fits"), (200, "short"), (1000, "blind")])
def test_verdicts(length: int, word: str) -> None:
    """xi is 74 steps: sigma(5)^2 = .98666."""
    analysis = analyze(Spec(Peephole(), {"f": Gate(bias_mean=5.0), "g": Gate(weight_var=1e-5, input_var=1.0)}))
    assert verdict(analysis, length) == word


def test_a_change_that_does_not_fade_is_endless() -> None:
    analysis = analyze(Spec(Vanilla("identity"), {"h": Gate(weight_var=1.0)}))
    assert verdict(analysis, 10) in ("endless", "unknown")
    assert sentence(analysis, 10).startswith("No number of steps can be given: ")


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("value", [math.inf, -1e-9])
def test_what_is_left_is_unknown_where_the_response_is_negative_or_beyond_all_numbers(place: int, value: float) -> None:
    analysis = analyze(Spec(Vanilla("identity"), {"h": Gate(weight_var=0.7)}), length=3)
    profile = analysis.profile.clone()
    profile[place] = value
    assert left_after(analysis, 3) == pytest.approx(0.7)
    changed = replace(analysis, profile=profile)
    assert left_after(changed, 3) is None and left_stderr(changed, 3) is None


def test_what_is_left_is_continued_by_chi() -> None:
    spec = Spec(Peephole(), {"f": Gate(bias_mean=2.0), "g": Gate(weight_var=0.1, input_var=1.0)})
    whole, part = analyze(spec, length=60), analyze(spec, length=20)
    assert left_after(part, 60) == pytest.approx(left_after(whole, 60), rel=1e-6)


def test_what_is_left_is_a_norm_as_in_reports() -> None:
    """A single unit that keeps .9 of its state: .9^9 of a change's norm after 10 steps, relative to one step."""
    memory = Vanilla("identity")
    spec = Spec(memory, {"h": Gate(weight_var=0.81, ensemble="orthogonal")})
    assert left_after(analyze(spec, length=10), 10) == pytest.approx(0.9**9, rel=1e-6)


def test_compare_puts_the_closest_reach_first() -> None:
    found = answer("compare", "--cell", "peephole", *SIZES, "--length", "100")
    names = [row["start"] for row in found["starts"]]
    assert set(names) == {*TEXTBOOK, "critical"}
    assert names[0] == "critical" and names[-1] == "identity"
    first, last = found["starts"][0], found["starts"][-1]
    assert first["reach"] == pytest.approx(100, rel=0.01) and first["verdict"] == "fits"
    assert last["reach"] is None and "identity" in last["reason"]


def test_compare_from_python_is_the_command() -> None:
    found = compare(Vanilla(), 30, hidden=64, inputs=32, input=Input(2.0, 0.5))
    sizes, law = ("--hidden", "64", "--inputs", "32"), ("--input-variance", "2", "--input-correlation", ".5")
    assert found.to_json() == answer("compare", "--cell", "vanilla", *sizes, "--length", "30", *law)
    shown = str(found).splitlines()
    assert shown[0] == "vanilla, N = 64, D = 32, T = 30" and len(shown) == 2 + len(found.starts)
    assert all(line.split()[0] == one.name for line, one in zip(shown[2:], found.starts, strict=True))
    assert found._repr_html_().count("<tr>") == 1 + len(found.starts)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"length": 0}, "length: 0"),
        ({"length": 9.5}, "length: 9.5 is not allowed; it must be a whole number"),
        ({"hidden": 0}, "hidden: 0"),
        ({"input": Input(torch.ones(2))}, "input: .* one law, not a batch"),
    ],
)
def test_compare_from_python_refuses(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        compare(Vanilla(), **{"length": 10, "hidden": 8, "inputs": 1, **changed})


def test_compare_lists_starts_that_a_cell_does_not_have() -> None:
    result = run("compare", "--cell", "vanilla", *SIZES, "--length", "10", "--in-use")
    assert all(name in result.stdout for name in IN_USE)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("vanilla has none") == 4


def test_what_is_left_has_the_error_of_its_time_scale() -> None:
    (torchs,) = (one for one in compare(LSTM(), 40, hidden=64, inputs=8).starts if one.name == "torch")
    assert torchs.analysis is not None and torchs.left is not None and torchs.left_stderr is not None
    chi, error = torchs.analysis.chi.number(), torchs.analysis.chi.error()
    assert chi is not None and error is not None and error > 0
    assert torchs.left_stderr / torchs.left == pytest.approx(39 / 2 * error / chi, rel=0.2)  # left = chi^((T - 1) / 2)
    assert torchs.to_json()["left_stderr"] == torchs.left_stderr
    exact = compare(Vanilla(), 20, hidden=64, inputs=8).starts[0]
    assert exact.left_stderr == pytest.approx(0, abs=1e-12)
