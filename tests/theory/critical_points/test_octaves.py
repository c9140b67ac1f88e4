"""The rule over octaves: who is slow, and whether the farthest step is heard as the theory of one unit says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from isornn import critical, init, isometric
from isornn.cells import CELLS, Cell, Gate, Input, Peephole, Spec, SpecError, Vanilla, cell_named
from isornn.cells.activations import hard_sigmoid
from isornn.cells.openings import bias_of
from isornn.cells.roles import roles_of
from isornn.theory import analyze
from isornn.theory.carry import carry_of

REMEMBERING = [cell for cell in map(cell_named, CELLS) if roles_of(cell).remember is not None]


def test_two_thirds_of_a_modules_units_only_add_up_and_the_others_are_spread_over_octaves() -> None:
    length, units = 100, 4000
    lstm = init.critical_(nn.LSTM(2, units), length, generator=torch.Generator().manual_seed(0))
    i, f, _, _ = lstm.state_dict()["bias_ih_l0"].double().chunk(4)
    torch.testing.assert_close(i, -f)
    slowest = float(f.max())
    assert math.log(2.5 * length) < slowest < math.log(3 * length)
    fast = f[f < slowest - 1e-5]
    assert len(fast) / units == pytest.approx(1 / 3, abs=4 * math.sqrt(2 / 9 / units))
    counts = torch.histc(fast, 4, 0, slowest)
    assert float(((counts - len(fast) / 4) ** 2 / (len(fast) / 4)).sum()) < 16.3  # chi squared, 3 degrees, p = .001


@pytest.mark.parametrize("cell", REMEMBERING, ids=lambda cell: cell.name)
@pytest.mark.parametrize("length", [10, 100])
def test_every_cell_that_remembers_has_the_time_scales_of_the_length(cell: Cell, length: int) -> None:
    point = critical(cell, length)
    assert [c.met for c in point.conditions] == [True, True], point.conditions
    keep = roles_of(cell).remember
    assert keep is not None
    law = point.spec.gates[keep].bias_law
    assert law is not None and law.low == 1.0
    # units one by one: what is left of the squared change of the first step after T more
    v = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    r = (math.log(law.high) * (3 * v).clamp(max=1)).exp()
    kept = (r / (1 + r)).square()
    assert float((kept ** (length + 1)).mean() / kept.mean()) == pytest.approx(1 / math.e, rel=1e-3)
    quiet = Spec.from_json(json.loads(json.dumps(point.spec.replace(f"{keep}.input_var", 0.0).to_json())))
    # a shaped output, which reads the state with weight, adds to the response of the LSTM
    assert analyze(quiet, length=length).reach.number() == pytest.approx(
        length, rel=0.1 if cell.name == "lstm" else 0.01
    )


def test_gates_that_hear_too_much_are_told() -> None:
    point = critical(Peephole(), 50, fixed={"f.input_var": 4.0})
    law = point.spec.gates["f"].bias_law
    assert law is not None and law == critical(Peephole(), 50).spec.gates["f"].bias_law
    assert [c.met for c in point.conditions] == [False, False]
    assert point.conditions[0].found == str(point.analysis.reach)


def test_the_variance_of_what_is_heard_is_the_same_for_inputs_of_any_size() -> None:
    gates = critical(cell_named("gru"), 50, input=Input(0.1)).spec.gates
    assert (gates["z"].input_var, gates["nx"].input_var) == (10.0, 40.0)


def test_what_is_heard_of_one_step_is_what_a_network_hears() -> None:
    length, inputs, units, copies = 40, 5, 400, 800
    generator = torch.Generator().manual_seed(0)
    lstm = nn.LSTM(inputs, units)
    point = critical(cell_named("lstm"), length)
    init.apply_(lstm, point.spec, generator=generator)
    x = torch.randn(length, copies, inputs, generator=generator)

    def slow_state(x: Tensor) -> Tensor:
        with torch.no_grad():
            return lstm(x)[1][1][0]

    c = slow_state(x)
    for lag in (0, 3, 19, 39):
        other = x.clone()
        other[length - 1 - lag] = torch.randn(copies, inputs, generator=generator)
        shares = (slow_state(other) - c).square().mean(0) / 2 / c.var(0)
        # of units, and of the inputs that were drawn again, which all units share
        error = math.hypot(
            float(shares.std()) / math.sqrt(units), float(shares.mean()) * math.sqrt(2 / inputs / copies)
        )
        expected = carry_of(point.spec).share_of(lag, length)
        assert float(shares.mean()) == pytest.approx(expected, abs=4 * error)
        assert 4 * error < 0.5 * expected


def test_a_point_over_octaves_names_the_line_of_the_default_start() -> None:
    point = critical(cell_named("minimal"), 100)
    law = point.spec.gates["u"].bias_law
    assert law is not None and (law.kind, law.low) == ("capped_timescale", 1.0)
    assert point.python == "isornn.init.critical_(module, length=100)"


def test_hard_gates_have_the_same_time_scales() -> None:
    spec = critical(cell_named("peephole", {"gate": "hard_sigmoid"}), 100).spec
    law, mirror = spec.gates["f"].bias_law, spec.gates["i"].bias_law
    soft = critical(cell_named("peephole"), 100).spec.gates["f"].bias_law
    assert law is not None and mirror is not None and soft is not None
    assert law.kind == "capped_timescale" and mirror == replace(law, sign=-1)
    assert law.high == pytest.approx(soft.high, rel=1e-6)
    end = torch.ones((), dtype=torch.float64)
    for gate, share in (("f", law.high / (1 + law.high)), ("i", 1 / (1 + law.high))):
        bias = bias_of(cell_named("peephole", {"gate": "hard_sigmoid"}), gate, spec.gates[gate].bias_law, end)
        assert float(hard_sigmoid(bias)) == pytest.approx(share, rel=1e-9)


def test_what_has_no_time_scales_of_units_is_solved_for_as_ever() -> None:
    vanilla = critical(Vanilla("tanh"), 30)
    assert vanilla.spec == isometric(Vanilla("tanh"), 30).spec
    assert vanilla.python == "isornn.init.critical_(module, length=30)"
    redrawn = isometric(cell_named("peephole"), 30, biases="redrawn")
    assert redrawn.analysis.xi.number() == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "prelu"])
def test_rectifiers_add_up_their_input_by_identity_matrices(kind: str) -> None:
    point = critical(Vanilla(kind), 50, input=Input(4.0))
    assert point.spec.gates["h"] == Gate(weight_var=1.0, input_var=1 / 200, ensemble="identity")
    assert point.conditions == () and "identity" in point.analysis.reach.reason()
    assert critical(Vanilla(kind), 50, fixed={"h.input_var": 0.3}).spec.gates["h"].input_var == 0.3
    for field, value in (("h.weight_var", 2.0), ("h.ensemble", "orthogonal")):
        with pytest.raises(SpecError, match=f"{field}: .*it is what sets the length"):
            critical(Vanilla(kind), 50, fixed={field: value})


def test_fields_can_be_fixed_but_not_the_time_scales() -> None:
    input = Input(4.0)
    point = critical(cell_named("gru_cho"), 50, fixed={"n.weight_var": 0.1}, input=input)
    assert point.spec.gates["n"].weight_var == 0.1 and point.spec.gates["n"].input_var == 1.0
    with pytest.raises(SpecError, match=r"z.bias_law: .* sets the length"):
        critical(cell_named("gru"), 50, fixed={"z.bias_law": None})


def test_the_kernel_of_memory_has_what_is_heard_on_its_diagonal() -> None:
    carry = carry_of(critical(cell_named("peephole"), 30).spec)
    kernel = carry.memory(30)
    torch.testing.assert_close(kernel, kernel.T)
    assert float(kernel.trace()) == pytest.approx(1.0)
    assert [float(kernel[k, k]) for k in (0, 29)] == pytest.approx([carry.share_of(k, 30) for k in (0, 29)])
    # a readout needs units of several kinds: one kind hears one thing, and slow ones alone hear nearly one
    uniform = carry_of(isometric(Peephole(), 30).spec).memory(30)
    assert float(torch.linalg.eigvalsh(kernel)[-2]) > 2 * float(torch.linalg.eigvalsh(uniform)[-2])
    assert int(torch.linalg.matrix_rank(carry_of(isometric(Peephole(), 30, biases="redrawn").spec).memory(30))) == 1
