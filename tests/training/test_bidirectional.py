"""Models that read in both directions, from a configuration's ``bidirectional``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.nn import soft_constraints
from isornn.tasks import Text, Words
from isornn.tasks.sentences import Sentences
from isornn.training import Configuration, ConfigurationError, SequenceModel, run
from isornn.training.building import build_model, build_penalty, check_sizes
from isornn.training.problems import Problem, problem_named

PROBLEM = problem_named("adding", {"length": 30, "held_out": 2}, 4)
MODELS = ["torch.nn.GRU", "torch.nn.LSTM", "lstm", "spectral"]


def configured(name: str = "lstm", **changes: Any) -> Configuration:
    both = {"name": name, "hidden": 5, "layers": 2, "bidirectional": True}
    given = {"task": {"name": "adding", "length": 30}, "model": both, "updates": 2, "validate_every": 1}
    return Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": 0.1}, **changes})


def built(name: str, **changes: Any) -> SequenceModel:
    torch.manual_seed(3)
    return build_model(configured(name, **changes), PROBLEM)


@pytest.mark.parametrize("name", MODELS)
def test_the_readout_is_of_both_last_states(name: str) -> None:
    model, x = built(name), torch.rand(30, 3, 2)
    state = model.recurrent(x)[1]
    last = state[0] if isinstance(state, tuple) else state
    torch.testing.assert_close(model(x), model.readout(torch.cat([last[-2], last[-1]], -1)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("every_step", [False, True])
def test_a_padded_sequence_reads_as_it_does_alone(name: str, every_step: bool) -> None:
    model, lengths = built(name), torch.tensor([7, 30, 1])
    model.every_step = every_step
    x = torch.rand(30, 3, 2)
    found = model(x, lengths)
    for place, length in enumerate(lengths.tolist()):
        alone = model(x[:length, place : place + 1])
        mine = found[:length, place] if every_step else found[place]
        torch.testing.assert_close(mine, alone.squeeze(1 if every_step else 0))


@pytest.mark.parametrize("start", ["critical", "standard", "chrono"])
def test_a_run_from_a_start(start: str, tmp_path: Path) -> None:
    problem = {"name": "adding", "length": 30, "held_out": 10}
    record = run(configured(task=problem, start={"name": start}, batch_size=4), tmp_path, device="cpu")
    assert record.last is not None and record.diverged is None


def test_a_penalty_is_of_both_directions() -> None:
    learner = built("lstm")
    penalty = build_penalty(configured(penalty={"name": "orthogonality", "strength": 0.5}).penalty, learner)
    assert penalty is not None
    names = [f"weight_hh_l{layer}{direction}" for layer in (0, 1) for direction in ("", "_reverse")]
    each = [soft_constraints.orthogonality(learner.recurrent, name).item() for name in names]
    assert penalty().item() == pytest.approx(0.5 * sum(each), rel=1e-5)


def test_one_direction_is_the_same_said_or_not() -> None:
    one = {"name": "lstm", "hidden": 5, "layers": 2}
    said, meant = configured(model=one), configured(model={**one, "bidirectional": False})
    assert said.hash == meant.hash != configured().hash
    assert Configuration.from_mapping(configured().to_mapping()).hash == configured().hash


def test_who_predicts_the_next_step_may_not_read_it() -> None:
    text = Text("two lines", "here", "a cat\nno\na longer sentence", "b", "c")
    for task in (Sentences(text, longest=5), Words(text, columns=1, unroll=3)):
        with pytest.raises(ConfigurationError, match="model.bidirectional: True is not allowed; .* next step"):
            check_sizes(configured(), Problem(task, task, task), torch.device("cpu"))


def test_steps_of_their_own_have_one_direction() -> None:
    with pytest.raises(ConfigurationError, match="model.bidirectional: True .* one direction"):
        configured(model={"name": "lstm", "hidden": 5, "own_steps": 30, "bidirectional": True})
