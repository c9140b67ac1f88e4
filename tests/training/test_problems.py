"""Every task by its name: its parts fit the model that is built for it, and one loss fits its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.tasks import DataError, loader, one_pass
from isornn.training import Configuration, evaluate
from isornn.training.building import build_model
from isornn.training.evaluation import task_loss
from isornn.training.problems import PROBLEMS, problem_named

BATCH = 4
OPTIONS: dict[str, tuple[dict[str, Any], int]] = {
    "copy": ({"length": 5, "held_out": 6}, 25),
    "adding": ({"length": 5, "held_out": 6}, 5),
    "noise_padded": ({"length": 4}, 4),
    "sequential_images": ({"permutation": 1}, 64),
    "repeated_pixels": ({"repeats": 2, "inputs": 16}, 8),
    "concatenated_digits": ({"digits": 2, "repeats": 1, "inputs": 16, "held_out": 6}, 8),
    "unrolled_colour": ({}, 64),
    "series": ({"set": "Tiny"}, 5),
    "sentences": ({"longest": 12}, 11),
    "words": ({"unroll": 3}, 3),
    "characters": ({"book": "book.txt", "unroll": 7, "held_out_columns": 2}, 7),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "valid", "test"):
        (folder / f"ptb.{part}.txt").write_text("a cat saw it\nno cat\n" * 8)
    (folder / "book.txt").write_text("all happy families are alike. " * 20)
    for part in ("TRAIN", "TEST"):
        (folder / f"Tiny_{part}.tsv").write_text("".join(f"{k % 2}\t0.1\t0.2\t0.3\t0.{k}\t1\n" for k in range(10)))
    return folder


def test_all_are_tried() -> None:
    assert OPTIONS.keys() == PROBLEMS.keys()


@pytest.mark.filterwarnings("ignore::isornn.tasks.DataWarning")
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_task_by_its_name(name: str, folder: Path) -> None:
    options, length = OPTIONS[name]
    fitted: dict[str, Any] = {"task": {"name": name, **options}, "model": {"name": "torch.nn.GRU", "hidden": 4}}
    configuration = Configuration.from_mapping(
        {**fitted, "optimiser": {"name": "adam", "rate": 0.1}, "updates": 1, "batch_size": BATCH}
    )
    needs_files = name in ("series", "sentences", "words", "characters")
    problem = problem_named(name, configuration.task.options, BATCH, folder if needs_files else None)
    assert problem.length == length
    model = build_model(configuration, problem)
    x, target, *lengths = next(iter(loader(problem.training, BATCH)))
    loss = task_loss(model(x, *lengths), target)
    loss.backward()
    assert loss.dim() == 0 and all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    model.forget()
    for part in (problem.validation, problem.test):
        told = evaluate(model, one_pass(part, part.columns or BATCH))
        assert 0 < told["loss"] < 10 and ("accuracy" in told) == (name != "adding")
        assert ("bits" in told) == problem.training.per_step


def test_validation_and_test_have_nothing_in_common() -> None:
    problem = problem_named("adding", {"length": 9, "held_out": 30}, BATCH)
    drawn = [torch.stack([part[item][0] for item in range(30)]) for part in (problem.validation, problem.test)]
    first = torch.stack([problem.training[item][0] for item in range(30)])
    trained = next(iter(loader(problem.training, 30)))[0].transpose(0, 1)
    every = torch.cat([drawn[0], drawn[1], trained])
    assert len(every.unique(dim=0)) == 90
    # What training draws is not what its items are, which the validation part repeats.
    assert torch.equal(first, drawn[0])


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ptb\.train\.txt"):
        problem_named("words", {"unroll": 3, "held_out_columns": 1}, BATCH, tmp_path)


def test_fewer_held_out_images_leave_training_as_it_was() -> None:
    options = {"permutation": None, "pooled": False, "block": None}
    whole, fewer = (problem_named("sequential_images", {**options, "held_out": most}, BATCH) for most in (None, 20))
    assert (len(fewer.training), len(fewer.validation), len(fewer.test)) == (len(whole.training), 20, 20)
    for part in ("training", "validation", "test"):
        ours, theirs = getattr(fewer, part), getattr(whole, part)
        assert all(torch.equal(a, b) for place in (0, 19) for a, b in zip(ours[place], theirs[place], strict=True))
