"""Colour images pixel by pixel: the critical LSTM with hard sigmoids over its forget bias, and the standard one."""

from __future__ import annotations

from pathlib import Path

from isornn.cells.starts import preset
from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.reproductions import _table2 as table
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.tasks import load_cifar
from isornn.theory import phase_diagram

_PRESET = "gilboa-lstm-critical"
_SHORT = 0.5  # of the length, that counts as much shorter


def measure(bench: Bench) -> Measured:
    """xi and test accuracy of the critical start at each forget bias, and the standard start's accuracy."""
    biases = bench.settings["bias_means"]
    spec = preset(_PRESET)
    xi = phase_diagram(spec, ("f.bias_mean", biases), ("input.variance", [1.0])).quantities["xi"]
    critical = {str(bias): _critical(bias) for bias in biases}
    standard = {"standard": {"model": {"name": "lstm"}, "start": {"name": "gilboa-standard"}}}
    rows = table.rows_trained(bench, {"name": "unrolled_colour"}, {**critical, **standard})
    return {"bias_means": biases, "xi": xi.listed()[0], "xi_stderr": xi.listed_errors()[0], "rows": rows}


def _critical(bias: float) -> table.Row:
    gates = preset(_PRESET).replace("f.bias_mean", bias).to_json()["gates"]
    return {"model": {"name": "lstm", "gate": "hard_sigmoid"}, "start": {"name": "spec", "gates": gates}}


def judge(measured: Measured) -> Verdict:
    """The forget bias that validates best beats the standard start, and its xi is much shorter than the sequence."""
    rows, biases = measured["rows"], measured["bias_means"]
    best = max(biases, key=lambda bias: by_seeds.mean(rows[str(bias)].get("valid", rows[str(bias)]["test"])))
    gap = by_seeds.difference(
        f"test accuracy, points, critical at forget bias {best:g} less standard",
        [100 * value for value in rows[str(best)]["test"]],
        [100 * value for value in rows["standard"]["test"]],
        "3.0",
    )
    xi, length = measured["xi"][biases.index(best)], rows["standard"]["length"]
    parts = {
        "critical above standard": by_seeds.above(gap),
        f"xi below {_SHORT:g} T": xi is not None and xi < _SHORT * length,
    }
    named = {f"forget bias {bias:g}": rows[str(bias)] for bias in biases} | {"standard": rows["standard"]}
    why = (
        f"{', '.join(table.summary(f'forget bias {bias:g}', rows[str(bias)]) for bias in biases)}, "
        f"{table.summary('standard', rows['standard'])}; the best bias has xi "
        f"{'without end' if xi is None else f'{xi:.1f}'} at T = {length}"
    )
    return Verdict(by_seeds.answer_of(parts), why, (gap, *table.effects(named, {"standard": 0.588})))


def panels(measured: Measured) -> list[Panel]:
    """Accuracy and xi over the forget bias."""
    biases, rows = measured["bias_means"], measured["rows"]
    tests = [by_seeds.effect("", rows[str(bias)]["test"]) for bias in biases]
    means = [one.value for one in tests]
    errors = [0.0 if one.high is None or one.value is None else one.high - one.value for one in tests]
    standard = by_seeds.mean(rows["standard"]["test"])
    return [
        Panel(
            "accuracy",
            "forget bias",
            "test accuracy",
            [Curve(biases, means, "critical, 95 % interval", error=errors)],
            marks=[Mark("y", standard, "standard")],
        ),
        Panel(
            "time scale",
            "forget bias",
            "xi",
            [Curve(biases, measured["xi"], "xi", "points")],
            marks=[Mark("y", rows["standard"]["length"], "T")],
        ),
    ]


def _data(folder: Path | None) -> str:
    return load_cifar(folder).name


TARGET = Target(
    id="gilboa-table2-cifar",
    source="Gilboa et al. 2019, table 2, unrolled CIFAR-10",
    claim="Colour images pixel by pixel: the critical LSTM with hard sigmoids beats the standard LSTM, and the forget "
    "bias that does best has xi much shorter than the sequence.",
    published="58.8 % standard LSTM (after Trinh et al. 2018), 61.8 % critical LSTM",
    choices="The package's grey digits stand in where there is no CIFAR-10: this is then no measurement on it. Width, "
    "optimiser (Adam) and rate are unsaid; gradient clipped at norm 1. Much shorter is below half the length. The best "
    "bias is the best on validation images, in the record of scale small, which has none of them, on test images, "
    "which favours the critical start. Ahead: a 95 % interval above 0. xi is at equal inputs.",
    settings={
        "small": {
            "bias_means": [0.0, 1.0, 2.0, 4.0],
            "hidden": 32,
            "batch": 32,
            "updates": 200,
            "validate_every": 100,
            "rates": [3e-3],
            "clip": 1.0,
            "seeds": 3,
        },
        "paper": {
            "bias_means": [0.0, 1.0, 2.0, 4.0, 6.0],
            "hidden": 512,
            "batch": 128,
            "updates": 60_000,
            "validate_every": 1000,
            "rates": [3e-4, 1e-3],
            "clip": 1.0,
            "seeds": 3,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
    data=_data,
    kind="training",
    untested={"small": "grey 8x8 digits and 200 updates: no measurement of colour images"},
    undecided="real CIFAR-10 could not be had where this was run, and no other images stand in for it at a larger "
    "scale",
)
