"""Hyper-parameters to tensors and back, for torch's modules, their cells and our own layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from inits import BASELINES, STACKS, STEPPERS, D, N, assert_recovered, seeded, tensors_of
from isornn.cells import (
    CELLS,
    GRU,
    LSTM,
    Cell,
    Gate,
    GersLSTM,
    Input,
    Reads,
    Spec,
    SpecError,
    Values,
    Vanilla,
    cell_named,
)
from isornn.cells.ind_rnn import IndRNN
from isornn.cells.linear import LRU
from isornn.cells.random_specs import random_spec
from isornn.cells.starts import start
from isornn.init import (
    ModuleError,
    apply_,
    chrono_,
    critical_,
    glorot_,
    identity_,
    isometric_,
    spec_of,
    standard_,
)
from isornn.nn import MinimalRNN
from isornn.nn.gate_tensors import recurrent_layers
from isornn.nn.rnn import RNN
from retaining_cells import Leaky


@pytest.mark.parametrize("name", CELLS)
def test_spec_of_recovers_what_apply_drew_for_every_cell(name: str) -> None:
    generator = seeded(7)
    cell = cell_named(name)
    inputs = N if cell.input_enters_pointwise else D
    for _ in range(5):
        spec = random_spec(cell, generator)
        found = spec_of(apply_(RNN(cell, inputs, N), spec, generator=generator), input=spec.input)
        assert found.cell == cell and found.input == spec.input
        for gate, wanted in spec.gates.items():
            assert_recovered(found.gates[gate], wanted, N, inputs)


@pytest.mark.parametrize("kind", STACKS)
def test_spec_of_recovers_every_layer_and_direction_of_torch(kind: str) -> None:
    module = STACKS[kind](D, N, num_layers=2, bidirectional=True)
    layers = recurrent_layers(module)
    assert [layer.inputs for layer in layers] == [D, D, 2 * N, 2 * N]
    generator = seeded(1)
    spec = random_spec(layers[0].cell, generator)
    apply_(module, spec, generator=generator)
    for layer in layers:
        found = spec_of(module, layer.layer, layer.direction)
        for gate, wanted in spec.gates.items():
            assert_recovered(found.gates[gate], wanted, N, layer.inputs)


@pytest.mark.parametrize("kind", STEPPERS)
def test_spec_of_recovers_torch_cells(kind: str) -> None:
    generator = seeded(2)
    spec = random_spec(cell_named(kind), generator)
    found = spec_of(apply_(STEPPERS[kind](D, N), spec, generator=generator))
    for gate, wanted in spec.gates.items():
        assert_recovered(found.gates[gate], wanted, N, D)


def test_the_sampling_error_of_the_round_trip_falls_with_width() -> None:
    """Relative error of weight_var is sqrt(2)/N for a Gaussian matrix: slope -1 in N."""
    widths, generator = (16, 32, 64, 128), seeded(3)
    spec = Spec(Vanilla(), {"h": Gate(weight_var=2.0)})
    errors = []
    for width in widths:
        module = nn.RNN(1, width)
        draws = [float(spec_of(apply_(module, spec, generator=generator)).gates["h"].weight_var) for _ in range(100)]
        errors.append(torch.tensor(draws).sub(2.0).square().mean().sqrt().log())
    x = torch.tensor(widths).log()
    slope = float(((x - x.mean()) * torch.stack(errors)).sum() / (x - x.mean()).square().sum())
    assert slope == pytest.approx(-1.0, abs=0.15)


def test_torchs_own_default_reads_back_as_the_torch_start() -> None:
    torch.manual_seed(0)
    for module, cell in ((nn.LSTM(49, 128), LSTM()), (nn.GRU(49, 128), GRU()), (nn.RNN(49, 128), Vanilla())):
        wanted = start("torch", cell, 128, 49)
        found = spec_of(module)
        for gate in wanted.gates:
            assert_recovered(found.gates[gate], wanted.gates[gate], 128, 49)


def test_means_of_the_input_count_as_biases() -> None:
    module, means = nn.LSTM(49, 128), torch.linspace(-3, 5, 49)
    before = spec_of(module)
    with torch.no_grad():
        module.bias_ih_l0 -= module.weight_ih_l0 @ means
    after = spec_of(module, means=means)
    for name, gate in before.gates.items():
        assert after.gates[name].bias_mean == pytest.approx(gate.bias_mean, abs=1e-5)
        assert gate.bias_law is not None and after.gates[name].bias_law is not None
        assert after.gates[name].bias_law.values == pytest.approx(gate.bias_law.values, abs=1e-5)
    for wrong in (torch.zeros(48), torch.full((49,), math.nan)):
        with pytest.raises(ModuleError, match="means: .* receives 49 features"):
            spec_of(module, means=wrong)


def test_means_are_of_what_a_feature_map_gives() -> None:
    module = MinimalRNN(4, 16)
    with pytest.raises(ModuleError, match=r"means: shape \(4,\) .* has gates that read Phi\(x\): 16 features"):
        spec_of(module, means=torch.zeros(4))
    means = torch.linspace(-1, 1, 16)
    found = spec_of(module, means=means).gates["u"]
    expected = module.bias_ih_l0 + module.bias_hh_l0 + module.weight_ih_l0 @ means
    assert found.bias_mean == pytest.approx(float(expected.detach().double().mean()), abs=1e-6)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_generator_decides_everything_and_the_global_one_is_untouched(kind: str, name: str) -> None:
    module = STACKS[kind](3, 5, num_layers=2)
    before = torch.random.get_rng_state()
    first = [p.clone() for p in BASELINES[name](module, generator=seeded(4)).parameters()]
    again = list(BASELINES[name](module, generator=seeded(4)).parameters())
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = list(BASELINES[name](module, generator=seeded(5)).parameters())
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_without_a_generator_the_global_seed_decides() -> None:
    torch.manual_seed(11)
    first = standard_(nn.LSTM(3, 5)).get_parameter("weight_hh_l0").clone()
    torch.manual_seed(11)
    assert torch.equal(standard_(nn.LSTM(3, 5)).get_parameter("weight_hh_l0"), first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_precision_gets_the_same_draw_rounded(dtype: torch.dtype) -> None:
    exact = standard_(nn.GRU(3, 5, dtype=torch.float64), generator=seeded())
    rounded = standard_(nn.GRU(3, 5, dtype=dtype), generator=seeded())
    for a, b in zip(exact.parameters(), rounded.parameters(), strict=True):
        assert b.dtype == dtype and torch.equal(a.to(dtype), b)


def test_parameters_stay_the_same_objects_and_autograd_sees_nothing() -> None:
    module = nn.LSTM(3, 5)
    module.weight_ih_l0.requires_grad_(False)
    before = list(module.parameters())
    assert standard_(module, generator=seeded()) is module
    after = list(module.parameters())
    assert all(a is b and a.is_leaf and a.grad_fn is None for a, b in zip(before, after, strict=True))
    assert [p.requires_grad for p in after] == [False, True, True, True]


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_set_module_trains(kind: str, name: str) -> None:
    module = BASELINES[name](STACKS[kind](3, 5, num_layers=2, bidirectional=True), generator=seeded())
    module(torch.randn(7, 2, 3, generator=seeded()))[0].square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


@pytest.mark.parametrize("cell", [cell_named(name) for name in CELLS], ids=lambda cell: cell.name)
def test_what_a_critical_layer_gives_out_depends_on_its_input_from_the_start(cell: Cell) -> None:
    layer = critical_(RNN(cell, N, N), 50, generator=torch.Generator().manual_seed(0))
    x = torch.randn(50, 4, N, generator=torch.Generator().manual_seed(1), requires_grad=True)
    out, _ = layer(x)
    (grad,) = torch.autograd.grad(out[-1].square().sum(), x)
    assert (grad.flatten(1).norm(dim=1) > 0).all()


def test_meta_modules_keep_their_device() -> None:
    module = standard_(nn.LSTM(3, 5, device="meta"), generator=seeded())
    assert all(p.is_meta for p in module.parameters())


def test_projected_lstms_keep_the_variance_per_fan_in() -> None:
    size = 16
    module = nn.LSTM(D, N, num_layers=2, proj_size=size)
    apply_(module, Spec(LSTM(), {"g": Gate(weight_var=3.0)}), generator=seeded())
    recurrent, _, _ = tensors_of(recurrent_layers(module)[0], "g")
    assert recurrent is not None and recurrent.shape == (N, size)
    assert size * float(recurrent.square().mean()) == pytest.approx(3.0, rel=0.2)
    standard_(module, generator=seeded())
    for layer in recurrent_layers(module):
        w, _, _ = tensors_of(layer, "f")
        assert w is not None and layer.projection is not None
        torch.testing.assert_close(w.T @ w, N / size * torch.eye(size, dtype=torch.float64), atol=1e-5, rtol=0)
        hr = layer.projection.detach()
        torch.testing.assert_close(hr @ hr.T, torch.eye(size), atol=1e-5, rtol=0)
    bound = math.sqrt(6 / (N + size))
    glorot_(module, generator=seeded())
    w, _, _ = tensors_of(recurrent_layers(module)[0], "f")
    assert w is not None and 0.9 * bound < float(w.abs().max()) <= bound
    assert 0.9 * bound < float(module.get_parameter("weight_hr_l0").detach().abs().max()) <= bound
    with pytest.raises(ModuleError, match="proj_size .* not square"):
        identity_(module)
    with pytest.raises(ModuleError, match="proj_size"):
        spec_of(module, 0)


class Translator(nn.Module):
    """Two recurrent modules of different kinds and a linear layer between."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.read = nn.LSTM(3, 5)
        self.between = nn.Linear(5, 3)
        self.write = nn.ModuleList([second])


def test_every_recurrent_layer_of_a_model_is_set_and_nothing_else() -> None:
    model = Translator(nn.GRUCell(3, 5))
    linear = model.between.weight.clone()
    standard_(model, generator=seeded())
    assert torch.equal(model.between.weight, linear)
    assert spec_of(model.read).gates["f"].bias_mean == 1.0
    assert spec_of(model.write[0]).gates["z"].bias_mean == 1.0
    with pytest.raises(ModuleError, match=r"read \(LSTM\) l0, write.0 \(GRUCell\)"):
        spec_of(model)
    assert spec_of(nn.Sequential(model.read)).gates["f"].bias_mean == 1.0


def test_nothing_is_written_where_one_layer_cannot_be_set() -> None:
    model = Translator(nn.RNN(3, 5))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(SpecError, match="vanilla has none"):
        chrono_(model, 100)
    with pytest.raises(SpecError, match=r"cell: LSTM.*write.0 \(RNN\) l0 has Vanilla"):
        apply_(model, Spec(LSTM()))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_users_own_cell_is_set_and_read() -> None:
    @dataclass(frozen=True)
    class MGU(Cell):
        name = "mgu"
        gates = {"f": Reads(), "n": Reads()}

        def update(self, s, u, x):
            f = torch.sigmoid(u.f)
            return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}

    spec = random_spec(MGU(), seeded())
    found = spec_of(apply_(RNN(MGU(), D, N), spec, generator=seeded()))
    for gate, wanted in spec.gates.items():
        assert_recovered(found.gates[gate], wanted, N, D)


def test_parametrised_weights_are_refused_for_writing_and_read_for_specs() -> None:
    module = standard_(nn.RNN(3, 5), generator=seeded())
    torch.nn.utils.parametrizations.orthogonal(module, "weight_hh_l0")
    with pytest.raises(ModuleError, match="RNN l0: .* gate h .*lost"):
        standard_(module)
    assert spec_of(module).gates["h"].ensemble == "orthogonal"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        partial(prune.l1_unstructured, amount=0.5),
    ],
    ids=["weight norm", "spectral norm", "pruned"],
)
@pytest.mark.parametrize("kind", [nn.LSTM, partial(RNN, LSTM())])
def test_weights_that_hooks_compute_are_those_of_the_next_call(
    kind: Callable[..., nn.Module], wrap: Callable[..., Any], training: bool
) -> None:
    wrapped: Any = kind(3, 5).train(training)
    wrap(wrapped, "weight_hh_l0")
    raw = ("_g", "_orig")
    state = {name: value * (3 if name.endswith(raw) else 1) for name, value in wrapped.state_dict().items()}
    wrapped.load_state_dict(state)
    stale = wrapped.weight_hh_l0
    found = spec_of(wrapped).gates["f"].weight_var
    assert wrapped.weight_hh_l0 is stale
    assert all(torch.equal(value, state[name]) for name, value in wrapped.state_dict().items())
    wrapped(torch.ones(4, 2, 3))
    f = wrapped.weight_hh_l0.detach()[5:10]
    assert found == pytest.approx(5 * float(f.square().mean()), rel=1e-6)


def test_layers_go_by_the_names_within_wrappers() -> None:
    compiled: Any = torch.compile(nn.LSTM(3, 4, num_layers=2), backend="eager")
    model = nn.Sequential(nn.Linear(3, 3), compiled)
    around: Any = torch.compile(nn.DataParallel(model), backend="eager")
    for wrapped in (model, nn.DataParallel(model), around):
        with pytest.raises(ModuleError, match=r"the module has 1 \(LSTM\) l0, 1 \(LSTM\) l1"):
            spec_of(wrapped)


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(ModuleError, match="Linear holds no recurrent layer"):
        standard_(nn.Linear(2, 2))
    hidden = nn.Sequential(nn.Linear(2, 2))
    vars(hidden[0])["layers"] = [nn.Identity(), nn.LSTM(2, 3)]  # no ModuleList
    with pytest.raises(ModuleError, match=r"holds no recurrent layer.* \(0.layers\[1\] is LSTM, .*nn.ModuleList"):
        standard_(hidden)
    with pytest.raises(ModuleError, match="layer, direction: 1, 0 .*GRU l0"):
        spec_of(nn.GRU(2, 3), layer=1)
    with pytest.raises(ModuleError, match="layer, direction: 0, 1"):
        spec_of(nn.LSTMCell(2, 3), direction=1)
    with pytest.raises(SpecError, match="length"):
        chrono_(nn.LSTM(2, 3), 2)
    with pytest.raises(SpecError, match="hard_sigmoid"):
        apply_(nn.LSTM(2, 3), Spec(LSTM(gate="hard_sigmoid")))
    with pytest.raises(SpecError, match="batch"):
        apply_(nn.RNN(2, 3), Spec(Vanilla(), {"h": Gate(weight_var=torch.ones(4))}))
    assert issubclass(ModuleError, ValueError)


def test_weights_that_torch_does_not_let_change_are_refused() -> None:
    with torch.inference_mode():
        module = nn.LSTM(2, 3)
    for set_ in (standard_, glorot_, partial(critical_, length=20)):
        with pytest.raises(ModuleError, match=r"LSTM l0: its weights were made in torch\.inference_mode"):
            set_(module)


def test_a_diverged_module_is_refused_by_the_field() -> None:
    module = nn.LSTM(2, 3)
    with torch.no_grad():
        module.get_parameter("weight_hh_l0")[4, 1] = math.nan
    with pytest.raises(SpecError, match=r"gates\.f\.weight_var: nan"):
        spec_of(module)


def test_one_of_several_layers_and_directions_is_to_be_named() -> None:
    deep = standard_(nn.GRU(2, 3, num_layers=2), generator=seeded())
    with pytest.raises(ModuleError, match=r"layer, direction: None, 0 are not allowed; the module has GRU l0, GRU l1"):
        spec_of(deep)
    assert spec_of(deep, 1) == spec_of(deep, 1, 0)
    both = standard_(nn.GRU(2, 3, bidirectional=True), generator=seeded())
    with pytest.raises(ModuleError, match=r"layer, direction: 0, None .* has GRU l0, GRU l0_reverse"):
        spec_of(both)
    assert spec_of(both, direction=1) == spec_of(both, 0, 1)
    with pytest.raises(ModuleError, match=r"layer, direction: None, None are not allowed"):
        spec_of(nn.GRU(2, 3, num_layers=2, bidirectional=True))


@pytest.mark.parametrize("cell", [Leaky(), IndRNN(), LRU()], ids=lambda cell: cell.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parameters_of_a_cell_are_read_while_they_are_its_start(cell: Cell, dtype: torch.dtype) -> None:
    """Specs have no numbers of the cell's own but its start; trained ones are refused."""
    module = RNN(cell, 4, 64, num_layers=2).to(dtype)
    assert spec_of(module, layer=1).cell == cell
    assert spec_of(module.double(), layer=1).cell == cell
    name = next(iter(cell.parameters))
    with torch.no_grad():
        parameter = module.get_parameter(f"{name}_l1")
        parameter[:32] = 0.99 + torch.arange(32) / 1e4
    assert spec_of(module, layer=0).cell == cell
    with pytest.raises(ModuleError, match=rf"RNN l1: parameter {name} .* isornn\.diagnose"):
        spec_of(module, layer=1)


@pytest.mark.parametrize("value", [1e-3, math.nan])
def test_one_unit_with_another_number_than_the_start_is_refused(value: float) -> None:
    module = RNN(GersLSTM(), 4, 8)
    with torch.no_grad():
        module.get_parameter("peep_f_l0")[3] = value
    with pytest.raises(ModuleError, match="parameter peep_f "):
        spec_of(module)


def test_the_input_law_is_carried() -> None:
    assert spec_of(nn.RNN(2, 3), input=Input(0.5, 0.0)).input == Input(0.5, 0.0)


def own(update: Callable[[Any, Any], Any], **names: Any) -> Cell:
    body = {"name": "own", "gates": {"n": Reads()}, "update": lambda self, s, u, x: {"h": update(s, u)}}
    kind: Any = type("Own", (Cell,), body | names)
    cell: Cell = dataclass(frozen=True)(kind)()
    return cell


@pytest.mark.parametrize("set_", [critical_, isometric_])
def test_a_cell_that_ignores_its_gate_has_no_critical_start(set_: Callable[..., Any]) -> None:
    with pytest.raises(SpecError, match="no fixed point sees 20 steps"):
        set_(RNN(own(lambda s, u: torch.tanh(u.n) * 0), D, N), length=20)


@pytest.mark.parametrize("set_", [critical_, isometric_])
@pytest.mark.parametrize("cell", [Vanilla("oplu"), own(lambda s, u: torch.softmax(u.n, -1), pointwise=False)])
def test_a_cell_that_is_not_pointwise_has_no_critical_start(set_: Callable[..., Any], cell: Cell) -> None:
    with pytest.raises(SpecError, match=rf"cell: '{cell.name}' .*not pointwise.* no theory.*orthogonal_"):
        set_(RNN(cell, D, 4), length=20)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRUCell, lambda D, N, device: RNN(LSTM(), D, N, device=device)])
def test_a_module_on_the_meta_device_has_no_spec(layer: Callable[..., nn.Module]) -> None:
    with pytest.raises(ModuleError, match="on the meta device.*no values.*to_empty"):
        spec_of(layer(2, 3, device="meta"))


def test_a_cell_that_reads_the_previous_input_alone_is_set_and_read() -> None:
    cell = own(lambda s, u: torch.tanh(u.n), gates={"n": Reads(input=False, previous_input=True)})
    gate = spec_of(standard_(RNN(cell, D, N), generator=seeded())).gates["n"]
    assert gate.ensemble == "orthogonal" and gate.previous_input_var > 0 and gate.input_var == 0


class Saturating(Cell):
    """Its second state is kept as long as wanted, and the first does not show it: h = tanh(m), m far above 1."""

    name = "saturating"
    states = ("h", "m")
    gates = {"a": Reads(), "b": Reads(state=False)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        m = torch.sigmoid(-u.b) * s.m + torch.sigmoid(u.a) * torch.tanh(u.b)
        return {"h": torch.tanh(m), "m": m}


def test_a_start_of_states_that_are_not_centred_warns_that_a_network_misses_the_length() -> None:
    """The theory's reach is 40; a network's is about 7. Warnings are errors, so that there is none of tanh."""
    critical_(RNN(Vanilla(), 3, 64), 40, input=Input(), generator=seeded())
    with pytest.warns(UserWarning, match="state at pre-activation 0: 0; .* a network sees far less, found 0.5"):
        critical_(RNN(Vanilla("sigmoid"), 3, 64), 40, input=Input(), generator=seeded())


class OffCentre(Cell):
    """A state whose value at pre-activation 0 is far smaller than the states are."""

    name = "off_centre"
    gates = {"u": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.u) + 1e-3}


def test_a_state_at_0_that_hardly_counts_does_not_warn() -> None:
    """Warnings are errors."""
    critical_(RNN(OffCentre(), 3, 64), 40, input=Input(), generator=seeded())


def test_a_start_that_misses_its_length_in_a_cell_of_ones_own_warns() -> None:
    with pytest.warns(UserWarning, match="saturating at length 40 does not meet reach = T .* 20 to 80, found"):
        critical_(RNN(Saturating(), D, N), 40, input=Input())
