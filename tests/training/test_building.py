"""From configurations to models, optimisers and schedules: each against the object made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from isornn import init
from isornn.cells import LSTM, Gate, Input, Spec, Vanilla
from isornn.nn import RNN, OwnSteps, SpectralRNN, soft_constraints, spectral
from isornn.optim import GeodesicSGD
from isornn.tasks import loader
from isornn.training import Configuration, ConfigurationError, SequenceModel, State, train
from isornn.training.building import build_model, build_optimiser, build_penalty, build_schedule
from isornn.training.problems import problem_named

PROBLEM = problem_named("adding", {"length": 30, "held_out": 2}, 4)


def configured(**changes: Any) -> Configuration:
    given = {"task": {"name": "adding", "length": 30}, "model": {"name": "lstm", "hidden": 5}, "updates": 9}
    return Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": 0.1}, **changes})


def built(**changes: Any) -> SequenceModel:
    torch.manual_seed(3)
    return build_model(configured(**changes), PROBLEM)


@pytest.mark.parametrize(
    ("start", "by_hand"),
    [
        ({"name": "torch"}, lambda layer: layer),
        ({"name": "standard"}, init.standard_),
        ({"name": "orthogonal"}, init.orthogonal_),
        ({"name": "glorot"}, init.glorot_),
        ({"name": "identity"}, init.identity_),
        ({"name": "uniform_gate"}, init.uniform_gate_),
        ({"name": "chrono"}, lambda layer: init.chrono_(layer, 30)),
        ({"name": "chrono", "length": 70}, lambda layer: init.chrono_(layer, 70)),
        ({"name": "stacked_orthogonal"}, init.stacked_orthogonal_),
        ({"name": "forget_bias_3"}, init.forget_bias_3_),
        ({"name": "forget_bias_3_to_6"}, init.forget_bias_3_to_6_),
        ({"name": "doubled_chrono"}, lambda layer: init.doubled_chrono_(layer, 30)),
        ({"name": "doubled_chrono", "length": 70}, lambda layer: init.doubled_chrono_(layer, 70)),
        (
            {"name": "spec", "gates": {"f": {"weight_var": 1, "bias_mean": 2}}},
            lambda layer: init.apply_(layer, Spec(LSTM(), {"f": Gate(weight_var=1.0, bias_mean=2.0)})),
        ),
    ],
)
def test_starts(start: dict[str, Any], by_hand: Callable[[nn.Module], nn.Module]) -> None:
    model = built(start=start)
    torch.manual_seed(3)
    expected = SequenceModel(RNN(LSTM(), 2, 5), 1)
    by_hand(expected.recurrent)
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_a_spec_starts_torch_modules_too() -> None:
    model = built(
        model={"name": "torch.nn.RNN", "hidden": 5, "nonlinearity": "relu"},
        start={"name": "spec", "gates": {"h": {"weight_var": 2, "bias_mean": 3}}},
    )
    torch.manual_seed(3)
    expected = SequenceModel(nn.RNN(2, 5, nonlinearity="relu"), 1)
    init.apply_(expected.recurrent, Spec(Vanilla("relu"), {"h": Gate(weight_var=2.0, bias_mean=3.0)}))
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_critical_is_made_for_the_task_or_for_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, float]] = []

    def draw(layer: nn.Module, length: float, batch: torch.Tensor) -> None:
        told.append((length, float(batch.square().mean())))

    monkeypatch.setattr(init, "critical_", draw)
    for start in ({"name": "critical"}, {"name": "critical", "length": 70}):
        built(start=start)
    assert [length for length, _ in told] == [30, 70]
    # numbers from 0 to 1, of mean square 1/3, beside two marks in 30 steps
    assert told[0][1] == told[1][1] == pytest.approx((1 / 3 + 2 / 30) / 2, rel=0.05)


def test_gradient_flossing_is_of_the_first_inputs() -> None:
    start = {"name": "gradient_flossing", "updates": 2}
    model = built(start=start)
    torch.manual_seed(3)
    expected = SequenceModel(RNN(LSTM(), 2, 5), 1)
    x, _ = next(iter(loader(PROBLEM.training, 64)))
    init.gradient_flossing_(expected.recurrent, batch=x, updates=2)
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    assert not torch.equal(
        model.get_parameter("recurrent.weight_hh_l0"), built().get_parameter("recurrent.weight_hh_l0")
    )


@pytest.mark.parametrize(
    ("name", "model"), [("isometric", {"name": "lstm"}), ("critical", {"name": "lstm", "own_steps": 30})]
)
def test_a_start_that_is_not_measured_is_drawn_for_the_law_of_the_first_inputs(
    name: str, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, float, float]] = []
    for each in ("isometric", "critical"):

        def draw(layer: nn.Module, length: float, *, input: Input, each: str = each) -> None:
            drawn.append((each, length, float(input.second_moment)))

        monkeypatch.setattr(init, f"{each}_", draw)
    built(model={**model, "hidden": 5}, start={"name": name, "length": 70})
    ((each, length, second_moment),) = drawn
    assert (each, length) == (name, 70) and second_moment == pytest.approx((1 / 3 + 2 / 30) / 2, rel=0.05)


def test_critical_scales_by_how_far_symbols_lie_from_their_mean() -> None:
    task = {"name": "copy", "length": 9, "held_out": 2}
    configuration = configured(task=task, model={"name": "torch.nn.GRU", "hidden": 2000}, start={"name": "critical"})
    model = build_model(configuration, problem_named("copy", configuration.task.options, 4))
    weights = model.get_parameter("recurrent.weight_ih_l0").detach().double()
    reset, write, candidate = weights.square().mean(1).chunk(3)
    assert float(reset.max()) == 0.0
    # Symbols in ten dimensions, of which the blank is most frequent: how far they lie from their mean when they do.
    x, _ = next(iter(loader(problem_named("copy", configuration.task.options, 4).training, 64)))
    moved = nn.functional.one_hot(x.flatten(), 10).double()
    moved = moved - moved.mean(0)
    gaussian = moved.T @ moved / len(moved)
    far = moved.square().sum(1).square().mean() / (gaussian.trace() ** 2 + 2 * gaussian.square().sum())
    size = float(far * gaussian.trace() / 10)
    assert 0.05 < size < 0.1  # 1/10 is the mean square, .05 the variance about the mean
    # Variance 1 at the write gate, 4 at the candidate: E u^2 = 10 E U_ij^2 size.
    assert float(10 * write.mean()) * size == pytest.approx(1.0, rel=0.05)
    assert float(10 * candidate.mean()) * size == pytest.approx(4.0, rel=0.05)


def test_a_preset_is_of_its_cell() -> None:
    model = built(model={"name": "lstm", "hidden": 5, "gate": "hard_sigmoid"}, start={"name": "gilboa-lstm-critical"})
    assert model.recurrent.bias_ih_l0.chunk(4)[1].tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="cell"):
        built(start={"name": "gilboa-peephole-critical"})


@pytest.mark.parametrize(
    ("model", "kind", "shown"),
    [
        ({"name": "torch.nn.RNN", "hidden": 4, "nonlinearity": "relu"}, nn.RNN, "nonlinearity='relu'|RNN"),
        ({"name": "torch.nn.GRU", "hidden": 4, "layers": 2, "dropout": 0.5}, nn.GRU, "num_layers=2, dropout=0.5"),
        ({"name": "minimal", "hidden": 4, "features": "tanh"}, RNN, "features=tanh"),
        ({"name": "gru_cho", "hidden": 4, "untied": True}, RNN, "untied=True"),
        ({"name": "peephole", "hidden": 4, "own_steps": 3}, OwnSteps, "(0-2): 3 x"),
        ({"name": "spectral", "hidden": 4, "margin": 0.3, "nonlinearity": "relu"}, SpectralRNN, "relu"),
    ],
)
def test_models(model: dict[str, Any], kind: type[nn.Module], shown: str) -> None:
    recurrent = built(model=model).recurrent
    assert isinstance(recurrent, kind) and recurrent.hidden_size == 4
    assert any(part in repr(recurrent) for part in shown.split("|"))
    if kind is SpectralRNN:
        assert spectral.factors(recurrent, "weight_hh_l0")[0].margin == 0.3


def _spectra_by_rmsprop(model: nn.Module, rate: float) -> Optimizer:
    bases, spectrum, rest = spectral.groups(model)
    spectrum = {"params": spectrum["params"], "lr": rate}
    return GeodesicSGD([bases, spectrum, rest], 0.1, rest=lambda groups: RMSprop(groups, 0.1))


@pytest.mark.parametrize(
    ("optimiser", "by_hand"),
    [
        ({"name": "sgd", "rate": 0.1, "momentum": 0.9}, lambda model: SGD(model.parameters(), 0.1, momentum=0.9)),
        ({"name": "adam", "rate": 0.1}, lambda model: Adam(model.parameters(), 0.1)),
        (
            {"name": "rmsprop", "rate": 0.1, "alpha": 0.9, "momentum": 0.5},
            lambda model: RMSprop(model.parameters(), 0.1, alpha=0.9, momentum=0.5),
        ),
        ({"name": "geodesic", "rate": 0.1}, lambda model: GeodesicSGD(spectral.groups(model), 0.1)),
        (
            {"name": "geodesic", "rate": 0.1, "geodesic_rate": 0.01, "momentum": 0.5, "rest": "rmsprop"},
            lambda model: GeodesicSGD(
                spectral.groups(model), 0.1, geodesic_lr=0.01, momentum=0.5, rest=lambda groups: RMSprop(groups, 0.1)
            ),
        ),
        (
            {"name": "geodesic", "rate": 0.1, "spectrum_rate": 0.5},
            lambda model: GeodesicSGD(
                spectral.groups(model), 0.5, geodesic_lr=0.1, rest=lambda groups: SGD(groups, 0.1)
            ),
        ),
        (
            {"name": "geodesic", "rate": 0.1, "spectrum_rate": 0.3, "spectrum": "rest", "rest": "rmsprop"},
            lambda model: _spectra_by_rmsprop(model, 0.3 / (2 * 0.3)),
        ),
    ],
)
def test_optimisers(optimiser: dict[str, Any], by_hand: Callable[[nn.Module], Optimizer]) -> None:
    weights, kind = [], {"name": "spectral", "hidden": 4, "margin": 0.3}
    ours = configured(model=kind, optimiser=optimiser).optimiser
    for make in (lambda model: build_optimiser(ours, model), by_hand):
        model = built(model=kind)
        optimizer = make(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 2, 2)).square().sum().backward()
            optimizer.step()
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant"}, [1.0] * 6),
        ({"name": "exponential", "factor": 0.5}, [0.5**k for k in range(6)]),
        ({"name": "step", "every": 2, "factor": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        ({"name": "milestones", "at": [1, 4], "factor": 0.1}, [1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        ({"name": "cosine"}, [1.0, 0.9045, 0.6545, 0.3455, 0.0955, 0.0]),
    ],
)
def test_schedules(schedule: dict[str, Any], expected: list[float]) -> None:
    """The rate of each update, and for cosine of the end."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], 1.0)
    made, rates = build_schedule(configured(schedule=schedule).schedule, optimizer, 5), []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if made is not None:
            made.step()
    assert rates == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("model", ["torch.nn.RNN", "lstm", "spectral"])
def test_a_penalty_is_of_every_layer(model: str) -> None:
    learner = built(model={"name": model, "hidden": 4, "layers": 2})
    penalty = build_penalty(configured(penalty={"name": "orthogonality", "strength": 0.5}).penalty, learner)
    assert penalty is not None
    each = [soft_constraints.orthogonality(learner.recurrent, f"weight_hh_l{layer}").item() for layer in (0, 1)]
    assert penalty().item() == pytest.approx(0.5 * sum(each), rel=1e-5)


def test_weight_decay_beside_a_soft_constraint() -> None:
    learner = built(model={"name": "lstm", "hidden": 4})
    penalty = build_penalty(configured(penalty={"name": "mean_one", "strength": 0.5, "decay": 0.25}).penalty, learner)
    assert penalty is not None
    blocks = learner.recurrent.weight_hh_l0.detach().unflatten(0, (-1, 4))
    values = torch.linalg.svdvals(blocks)
    expected = 0.5 * (values - 1).square().sum() + 0.25 * blocks.square().sum()
    assert penalty().item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_penalty_acts_on_the_weights_and_not_on_the_loss_that_is_told() -> None:
    """Without a task's gradient on it, ``s sum W^2`` alone shrinks W by 1 - 2 s rate a step."""
    losses: list[float] = []
    learner = built(model={"name": "torch.nn.RNN", "hidden": 4})
    nn.init.zeros_(learner.readout.weight)
    before = learner.recurrent.weight_hh_l0.detach().clone()
    penalty = build_penalty(configured(penalty={"name": "decay", "strength": 3}).penalty, learner)
    learner.readout.weight.requires_grad_(False)
    state = State(learner, SGD(learner.parameters(), 0.01))
    x, y = torch.ones(3, 2, 2), torch.zeros(2, 1)
    bias = learner.readout.bias.item()
    train(state, iter([(x, y)]), 1, penalty=penalty, on_update=[lambda state: losses.append(state.loss)])
    torch.testing.assert_close(learner.recurrent.weight_hh_l0, (1 - 2 * 3 * 0.01) * before)
    assert losses == pytest.approx([bias**2])


def test_a_penalty_on_no_matrix_is_refused() -> None:
    learner = built(model={"name": "t_rnn", "hidden": 4})
    with pytest.raises(ConfigurationError, match="penalty.name: 'decay' is not allowed; the model has no recurrent"):
        build_penalty(configured(penalty={"name": "decay", "strength": 1}).penalty, learner)


def test_a_uniform_start_draws_all_parameters_within_its_bound() -> None:
    model = built(start={"name": "uniform", "bound": 0.05})
    largest = [float(parameter.detach().abs().max()) for parameter in model.parameters()]
    assert max(largest) <= 0.05 and min(largest) > 0.01


@pytest.mark.parametrize("model", [{"name": "spectral", "hidden": 4, "margin": 1.0}, {"name": "vanilla", "hidden": 4}])
def test_a_scaled_start_multiplies_recurrent_matrices_and_has_no_biases(model: dict[str, Any]) -> None:
    plain, scaled = (
        built(model=model, start=start).recurrent for start in ({"name": "torch"}, {"name": "scaled", "gain": 1.5})
    )
    values = [torch.linalg.svdvals(one.weight_hh_l0.detach()) for one in (plain, scaled)]
    torch.testing.assert_close(values[1], 1.5 * values[0], rtol=1e-4, atol=1e-5)
    biases = [parameter for name, parameter in scaled.named_parameters() if name.startswith("bias")]
    assert biases and not any(bias.any() for bias in biases)


def test_a_held_start_is_an_orthogonal_matrix_times_its_gain_that_is_not_trained() -> None:
    model = built(model={"name": "spectral", "hidden": 4}, start={"name": "held", "gain": 1.05})
    values = torch.linalg.svdvals(model.recurrent.weight_hh_l0.detach())
    torch.testing.assert_close(values, torch.full((4,), 1.05))
    assert [p.requires_grad for p in spectral.factors(model.recurrent, "weight_hh_l0")[1]] == [True, False, True]


def test_a_start_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"start\.name: 'gilboa-lstm-critical' is not allowed; cell: "):
        built(start={"name": "gilboa-lstm-critical"})
