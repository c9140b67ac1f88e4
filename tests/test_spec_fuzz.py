"""Whatever a spec file holds, `isornn analyze` answers in strict JSON or refuses in one line, and does so soon."""

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from isornn.cells import CELLS
from isornn.cells.activations import GATE_FUNCTIONS, TRANSITIONS
from isornn.cli import app

SLOWEST = 300  # seconds of the processor; the slowest example takes some 30 on a quiet core
SAMPLED = ("lstm", "gru")  # answered by population, slower by two orders
CLOSED = tuple(name for name in CELLS if name not in SAMPLED)


class Late(BaseException):
    """No Exception, so that nothing on the way takes it for an answer."""


def fuzz(examples: int) -> settings:
    """No shrinking: a hang would be waited for again and again."""
    phases = (Phase.explicit, Phase.generate)
    return settings(max_examples=examples, phases=phases, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail in the middle of whatever takes longer."""

    def late(_: int, frame: FrameType | None) -> None:
        # What a callback of the garbage collector raises is lost: wait for the next tick.
        if frame is None or frame.f_code.co_name != "gc_callback":
            raise Late(f"no answer within {seconds} s of the processor")

    # The process's own time: what else runs on the machine does not count.
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def analysed(folder: pytest.TempPathFactory, text: str, seconds: int = SLOWEST) -> Result:
    file = folder.getbasetemp() / "fuzzed.json"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with at_most(seconds):
        return CliRunner().invoke(app, ["analyze", str(file), "--json"])


def check_answered(result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 2)
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1 and len(result.stderr) < 500
        return
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    check_consistent(answer)


def check_consistent(answer: dict[str, Any]) -> None:
    """Every number is there or has its reason; what cannot be is not."""
    point, missing = answer["fixed_point"], answer["undefined"]
    numbers = {"correlation": point["correlation"]} | {f"fixed_point.{n}": point[n] for n in ("mean", "second_moment")}
    numbers |= {name: answer[name] for name in ("chi", "xi", "chi_1", "reach", "xi_q")}
    if answer["jacobian"] is None:
        assert "jacobian" in missing
    else:
        numbers |= {f"jacobian.{name}": value for name, value in answer["jacobian"].items()}
    for name, value in numbers.items():
        assert (value is None) == (name in missing), name
        assert value is None or answer["stderr"][name] >= 0
    if not point["converged"]:
        assert all(value is None for value in numbers.values())
    if answer["xi"] is not None:
        assert answer["xi"] >= 0 and abs(answer["chi"]) < 1
    if answer["reach"] is not None:
        assert answer["reach"] >= 0
    if point["correlation"] is not None:
        assert abs(point["correlation"]) <= 1 + 1e-9
    if point["second_moment"] is not None:
        assert point["second_moment"] >= point["mean"] ** 2 * (1 - 1e-6) - 1e-12


words = st.sampled_from(
    [*CELLS, *"ifgorzuh", "nx", "cell", "gates", "input", "options", "biases", "variance", "weight_var", "bias_law"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)
top = st.fixed_dictionaries(
    {"cell": st.sampled_from([*CELLS])},
    optional={"gates": json_values, "input": json_values, "options": json_values, "biases": json_values},
)


@fuzz(150)
@given(value=json_values | top)
def test_arbitrary_json(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    check_answered(analysed(tmp_path_factory, json.dumps(value)))


@fuzz(100)
@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.text(alphabet='{}[]",:.eE+-0123456789 celgatsNaInfy'))
def test_arbitrary_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    check_answered(analysed(tmp_path_factory, text))


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: min(max(10.0**x, low), high))


variances = st.sampled_from([0, 1, 1e-300, 5e-324, 1e-12, 1e12, 1e4, 25.0, 1e-5]) | log_uniform(1e-8, 1e12)
usual = log_uniform(1e-3, 10.0)
means = st.sampled_from([0, 50, -50, 1e12, -1e12, 1e-300, 5, 7.0]) | st.floats(-1e3, 1e3)
ends = st.sampled_from([0, 1, -1, 1 - 1e-16, 1 - 1e-9, 1e-300, -1e-9]) | st.floats(-1, 1)
times = log_uniform(2.0001, 1e15)
bias_laws = st.one_of(
    st.just("normal"),
    st.builds(lambda T, s: {"chrono": T, "sign": s}, times, st.sampled_from([1, -1])),
    st.builds(
        lambda kind, low, T: {kind: [low, low * T]},
        st.sampled_from(["timescale", "log_timescale", "capped_timescale"]),
        log_uniform(1e-6, 1e6),
        times,
    ),
    st.builds(lambda s: {"uniform_gate": True, "sign": s}, st.sampled_from([1, -1])),
)
ensembles = st.sampled_from(["gaussian", "orthogonal", "identity"]) | st.builds(lambda m: {"margin": m}, variances)


@st.composite
def specs(draw: st.DrawFn, cells: tuple[str, ...], spread: bool = True) -> dict[str, Any]:
    """Valid specs with numbers from everywhere; with ``spread`` units may differ in their biases."""
    name = draw(st.sampled_from(cells))
    cell = CELLS[name]
    numbers = draw(st.sampled_from([usual, variances]))
    gates = {}
    for gate, reads in cell.gates.items():
        read = {"weight_var": reads.state, "input_var": reads.input, "previous_input_var": reads.previous_input}
        optional: dict[str, st.SearchStrategy[Any]] = {field: numbers for field, does in read.items() if does}
        optional |= {"bias_mean": means, "ensemble": ensembles}
        optional |= {"bias_var": numbers, "bias_law": bias_laws} if spread else {}
        gates[gate] = draw(st.fixed_dictionaries({}, optional=optional))
    options = {"nonlinearity": [*TRANSITIONS]} if name == "vanilla" else {"gate": [*GATE_FUNCTIONS]}
    return {
        "cell": name,
        "gates": gates,
        "input": draw(st.fixed_dictionaries({}, optional={"variance": variances, "correlation": ends})),
        "biases": draw(st.sampled_from(["redrawn", "fixed"])),
        "options": {key: draw(st.sampled_from(values)) for key, values in options.items()},
    }


def check_extreme(folder: pytest.TempPathFactory, spec: dict[str, Any], seconds: int = SLOWEST) -> None:
    result = analysed(folder, json.dumps(spec), seconds)
    check_answered(result)
    assert result.exit_code == 0, result.stderr


@fuzz(100)
@given(spec=specs(CLOSED, spread=False))
def test_extreme_specs_of_equal_units(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]) -> None:
    check_extreme(tmp_path_factory, spec)


@fuzz(13)
@given(spec=specs(CLOSED))
def test_extreme_specs(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]) -> None:
    check_extreme(tmp_path_factory, spec)


@fuzz(5)
@given(spec=specs(SAMPLED))
def test_extreme_sampled_specs(tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]) -> None:
    check_extreme(tmp_path_factory, spec)
