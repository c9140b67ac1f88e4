"""Words of Penn Treebank over the grid of supplement F: the minimalRNN compared with a network without gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from isornn.experiments.reproductions import _by_seeds as seeds
from isornn.experiments.reproductions._few_words import CHOICE, with_few_words
from isornn.experiments.reproductions._summed_loss import of_mean
from isornn.experiments.runs import train_all
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Mark, Panel
from isornn.tasks import Text, Words, load_ptb
from isornn.training.sweep import load_sweep

_EPOCHS, _UNROLL = 13, 20  # of the sweep file
_MODELS: Mapping[str, Mapping[str, Any]] = {
    "minimalRNN": {"name": "minimal", "features": "tanh"},
    "vanilla RNN": {"name": "vanilla"},
}


def measure(bench: Bench) -> Measured:
    """Each model over the grid with one seed, and all seeds of the setting that validates best."""
    bench, text = with_few_words(bench)
    epoch = Words(text, columns=bench.settings["batch"], unroll=_UNROLL).batches
    grid, first = list(_grid(bench)), 1000 * bench.seed
    plan = [_configuration(bench, epoch, model, point, first) for model in _MODELS.values() for point in grid]
    searched = iter(train_all(bench, plan))
    found: dict[str, Any] = {}
    for name, model in _MODELS.items():
        scores = [_perplexity(next(searched).best) for _ in grid]
        losses = seeds.known(scores)
        best = grid[losses.index(min(losses))]
        again = range(first, first + bench.settings["seeds"])
        runs = train_all(bench, [_configuration(bench, epoch, model, best, seed) for seed in again])
        found[name] = {
            "valid": scores,
            "best": best,
            "parameters": runs[0].parameters,
            "test": [_perplexity(run.test) for run in runs],
        }
    return {"grid": grid, "frequencies": frequencies_perplexity(text), "models": found}


def _grid(bench: Bench) -> Iterator[dict[str, float]]:
    """The file's settings, of each range the values that are kept."""
    for run in load_sweep(Path(bench.settings["file"])):
        point = {
            "rate": round(run["optimiser"]["rate"] / _UNROLL, 6),
            "max_epoch": _EPOCHS - len(run["schedule"]["at"]),
            "decay": run["schedule"]["factor"],
            "dropout": run["model"]["dropout"],
        }
        if all(point[name] in values for name, values in bench.settings["kept"].items()):
            yield point


def _configuration(
    bench: Bench, epoch: int, model: Mapping[str, Any], point: Mapping[str, float], seed: int
) -> dict[str, Any]:
    """Of an epoch of so many updates."""
    units, (rate, clip) = bench.settings["units"], of_mean(_UNROLL, point["rate"])
    return {
        "task": {"name": "words", "unroll": _UNROLL, "held_out_columns": 20},
        "model": {**model, "hidden": units, "embedding": units, "layers": 2, "dropout": point["dropout"]},
        "optimiser": {"name": "sgd", "rate": rate},
        "schedule": {
            "name": "milestones",
            "factor": point["decay"],
            "at": [epoch * k for k in range(int(point["max_epoch"]), _EPOCHS)],
        },
        "updates": epoch * _EPOCHS,
        "batch_size": bench.settings["batch"],
        "validate_every": epoch,
        "clip": clip,
        "seed": seed,
    }


def _perplexity(metrics: Mapping[str, float] | None) -> float | None:
    return None if metrics is None else metrics.get("perplexity")


def frequencies_perplexity(text: Text) -> float:
    """Of the test part where each word has its frequency in training, whatever came before it; exact."""
    train, test = Words(text, columns=1), Words(text, "test", columns=1)
    counts = torch.bincount(train.symbols, minlength=train.inputs).double()
    return math.exp(-float((counts / counts.sum()).log()[test.symbols[1:]].mean()))


def judge(measured: Measured) -> Verdict:
    """The minimalRNN's test perplexity, at its best setting, is below that of frequencies."""
    models = measured["models"]
    tests = {name: seeds.known(row["test"]) for name, row in models.items()}
    minimal, vanilla = tests["minimalRNN"], tests["vanilla RNN"]
    parts = {"minimalRNN below word frequencies": seeds.below(minimal, [measured["frequencies"]])}
    details = "; ".join(
        f"{name} {seeds.mean_range(tests[name], '.1f')} at {_point_text(row['best'])}" for name, row in models.items()
    )
    return Verdict(
        seeds.answer_of(parts),
        f"test perplexity, mean and range over seeds, at the best of {len(measured['grid'])} settings by validation: "
        f"{details}; word frequencies {measured['frequencies']:.1f}. "
        + "; ".join(f"{name}: {seeds.WORDS[part]}" for name, part in parts.items()),
        (
            *(seeds.effect(f"test perplexity, {name}", losses) for name, losses in tests.items()),
            seeds.difference("test perplexity, minimalRNN less vanilla RNN", minimal, vanilla),
        ),
    )


def _point_text(point: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in point.items())


def panels(measured: Measured) -> list[Panel]:
    """The grid's validation perplexities in order; test perplexities of all seeds at the best setting."""
    models, line = measured["models"], Mark("y", measured["frequencies"], "word frequencies")
    ordered = [
        Curve(range(1, len(scores) + 1), scores, name, "points", colour=number)
        for number, (name, scores) in enumerate(
            (name, sorted(score for score in row["valid"] if score is not None)) for name, row in models.items()
        )
    ]
    names = list(enumerate(models, 1))
    tested = [
        seeds.points([k], [seeds.known(row["test"])], name, k - 1) for k, (name, row) in enumerate(models.items(), 1)
    ]
    return [
        Panel("grid F, one seed", "setting, best first", "validation perplexity", ordered, marks=[line], log=("y",)),
        Panel(
            "at the best setting, half the range", "", "test perplexity", tested, marks=[line], log=("y",), names=names
        ),
    ]


def data_name(folder: Path | None) -> str:
    """The text's name; how much of it is used is in the settings."""
    return load_ptb(folder).name


TARGET = Target(
    id="chensupp-words",
    source="Chen, Pennington & Schoenholz 2018, supplement F",
    claim="With a setting from the search ranges of supplement F a minimalRNN learns to model words: its test "
    "perplexity is below that of word frequencies. (No text at hand claims it: the paper's experiments are not there.)",
    published="the ranges alone, for all the models; the experiments are in a main text that is not at hand",
    choices=f"{CHOICE} Task and optimiser are unsaid; the rest of the setting is the sweep file's: two layers, tanh "
    "features, SGD, 20 steps, 13 epochs of which max-epoch at the first rate, clip 5; rates and clip are of the loss "
    "summed over the 20 steps. The vanilla RNN, tanh and with as many units, is the network without gates; it is shown "
    "beside and not judged. One seed searches, all seeds are tested at the setting that validates best. At scale small "
    "one rate, two max-epochs, one decay and two dropouts, 60 units and batches of 10. One model is below another if "
    "all its seeds are.",
    settings={
        "small": {
            "file": "sweeps/chen-supplement-f.toml",
            "kept": {"rate": [0.5], "max_epoch": [4, 11], "decay": [0.5], "dropout": [0.0, 0.5]},
            "lines": 1000,
            "held_out_lines": 300,
            "words": 2000,
            "units": 60,
            "batch": 10,
            "seeds": 2,
        },
        "paper": {
            "file": "sweeps/chen-supplement-f.toml",
            "kept": {},
            "units": 200,
            "batch": 20,
            "seeds": 3,
        },
    },
    measure=measure,
    judge=judge,
    panels=panels,
    data=data_name,
    kind="training",
    untested={"small": "1000 lines, 2000 words and 4 of the 216 settings"},
    undecided="the paper's experiments are in a main text that is not at hand, so that there is no claim to decide; "
    "the 216 settings at full size take some 200 hours on two cores",
)
