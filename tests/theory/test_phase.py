"""Phase diagrams."""

import pytest
import torch

from isornn.cells import LSTM, ChoGRU, Gate, Input, Spec, SpecError, Vanilla
from isornn.theory.analysis import analyze
from isornn.theory.phase import QUANTITIES, PhaseDiagram, phase_diagram
from isornn.theory.reasons import NOT_ASKED

BASE = Spec(ChoGRU(), {gate: Gate(1.0, 1.0) for gate in "rzn"})
LINEAR = Spec(Vanilla("identity"), {"h": Gate(1.0, 1.0)})


def test_is_the_analysis_of_each_spec() -> None:
    x, y = torch.linspace(0.0, 3.0, 53), torch.linspace(0.5, 4.0, 3)
    diagram = phase_diagram(BASE, ("z.bias_mean", x), ("input.variance", y))
    assert diagram.finished and diagram.engine == "quadrature"
    for row, column in ((0, 0), (2, 10), (1, 52)):
        spec = BASE.replace("z.bias_mean", float(x[column])).replace("input.variance", float(y[row]))
        alone = dict(analyze(spec, length=1).quantities())
        for name, quantity in diagram.quantities.items():
            expected = alone[QUANTITIES[name]].number()
            assert float(quantity.value[row, column]) == pytest.approx(expected, rel=1e-6, abs=1e-9), name


def test_without_a_fixed_point_there_is_a_reason_and_no_number() -> None:
    diagram = phase_diagram(LINEAR, ("h.weight_var", [0.5, 0.9, 1.2]), ("h.bias_mean", [0.0, 1.0]))
    assert diagram.converged.tolist() == [[True, True, False]] * 2
    for quantity in diagram.quantities.values():
        assert not bool(quantity.defined[~diagram.converged].any())
    assert torch.equal(diagram.quantities["xi"].defined, diagram.converged)


def test_what_is_begun_is_kept() -> None:
    axes = ("z.bias_mean", torch.linspace(0, 3, 60)), ("n.weight_var", [1.0, 2.0])
    parts: list[PhaseDiagram] = []
    whole = phase_diagram(BASE, *axes, progress=parts.append)
    assert [int(part.answered.sum()) for part in parts] == [100, 120]
    left = ~parts[0].answered
    for quantity in parts[0].quantities.values():
        assert torch.equal(quantity.defined, parts[0].answered)
        assert [reason for reason, where in quantity.reasons if bool(where[left].all())] == [NOT_ASKED]
    assert not any(NOT_ASKED in dict(quantity.reasons) for quantity in whole.quantities.values())
    assert not bool(parts[0].residual.isnan().any())
    again: list[PhaseDiagram] = []
    resumed = phase_diagram(BASE, *axes, begun=parts[0], progress=again.append)
    assert len(again) == 1
    assert all(torch.equal(resumed.quantities[n].value, whole.quantities[n].value) for n in QUANTITIES)


def test_sampled_diagrams_are_the_same_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isornn.theory.phase._AGAIN", 1)  # groups of one spec
    base = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"}, Input(1.0, 0.5))  # is asked three times
    axes = ("f.bias_mean", [0.0, 2.0]), ("f.weight_var", [1.0])
    parts: list[PhaseDiagram] = []
    whole = phase_diagram(base, *axes, progress=parts.append)
    assert len(parts) == 5 and whole.finished and whole.asked.tolist() == [[3, 3]]
    again: list[PhaseDiagram] = []
    for begun in (parts[1], parts[3]):
        resumed = phase_diagram(base, *axes, begun=begun, progress=again.append)
        for name, quantity in whole.quantities.items():
            assert torch.equal(resumed.quantities[name].value, quantity.value), name
    assert len(again) == 3 + 1


def test_begun_for_something_else_is_refused() -> None:
    axes = ("z.bias_mean", [0.0, 1.0]), ("n.weight_var", [1.0])
    other = phase_diagram(BASE, *axes)
    with pytest.raises(SpecError, match="begun: .* same spec over the same axes"):
        phase_diagram(BASE.replace("r.bias_mean", 1.0), *axes, begun=other)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (("q.bias_mean", [0.0]), ("r.bias_mean", [0.0]), "axis: 'q.bias_mean' is not allowed; .* GATE of r, z, n"),
        (("z.ensemble", [0.0]), ("r.bias_mean", [0.0]), "z.ensemble.* GATE.weight_var"),
        (("biases", [0.0]), ("r.bias_mean", [0.0]), "biases.* GATE.weight_var"),
        (("z.bias_mean", []), ("r.bias_mean", [0.0]), "z.bias_mean: .* at least one"),
        (("z.bias_mean", [1.0, 0.0]), ("r.bias_mean", [0.0]), "z.bias_mean: .* increase"),
        (("z.weight_var", [-1.0, 0.0]), ("r.bias_mean", [0.0]), "gates.z.weight_var: -1.0 is not allowed"),
        (("z.bias_mean", [0.0]), ("z.bias_mean", [0.0]), "y: 'z.bias_mean' .* the two axes differ"),
        (("input.correlation", [0.0, 2.0]), ("z.bias_mean", [0.0]), "input.correlation: 2.0 is not allowed"),
    ],
)
def test_axes_that_cannot_be(x: tuple[str, list[float]], y: tuple[str, list[float]], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        phase_diagram(BASE, x, y)


def test_a_batch_is_refused() -> None:
    batch = BASE.replace("r.bias_mean", torch.zeros(2))
    with pytest.raises(SpecError, match="spec: .* not a batch"):
        phase_diagram(batch, ("z.bias_mean", [0.0]), ("n.weight_var", [1.0]))


@pytest.mark.parametrize("correlation", [1.0, 0.5])
def test_sampled_cells_agree_with_a_full_analysis(correlation: float) -> None:
    base = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"}, Input(1.0, correlation))
    diagram = phase_diagram(base, ("f.bias_mean", [0.0, 2.0]), ("f.weight_var", [1.0]))
    assert diagram.engine == "population" and diagram.finished and bool(diagram.converged.all())
    full = analyze(base.replace("f.bias_mean", torch.tensor([0.0, 2.0], dtype=torch.float64)), length=1)
    for name, quantity in diagram.quantities.items():
        exact = dict(full.quantities())[QUANTITIES[name]]
        error = (quantity.value[0] - exact.value).abs()
        assert bool((error <= 5 * quantity.stderr[0] + 0.02 * exact.value.abs()).all()), name


def test_a_sampled_cell_without_a_fixed_point() -> None:
    base = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "igo"} | {"f": Gate(bias_mean=1e6)})
    diagram = phase_diagram(base, ("g.weight_var", [1.0, 2.0]), ("i.weight_var", [1.0]))
    assert diagram.finished and not bool(diagram.converged.any())
    assert not bool(diagram.quantities["xi"].defined.any()) and diagram.quantities["xi"].reasons


def test_tied_networks_are_those_of_the_full_theory() -> None:
    base = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"})
    diagram = phase_diagram(base, ("f.bias_mean", [0.0, 0.5]), ("g.weight_var", [1.0, 2.0]), tied_steps=20)
    assert diagram.engine == "tied" and diagram.finished and bool(diagram.converged.all())
    for row, column in ((0, 0), (1, 1)):
        spec = base.replace("f.bias_mean", 0.5 * column).replace("g.weight_var", (1.0, 2.0)[row])
        full = analyze(spec, tied=True, steps=20).tied
        assert full is not None
        for name, quantity in {**dict(full.numbers()), "second_moment": full.second_moment}.items():
            # the last step of what is followed over time
            value, error = (numbers.reshape(-1)[-1] for numbers in (quantity.value, quantity.stderr))
            found = diagram.quantities[name]
            noise = torch.hypot(found.stderr[row, column], error)
            assert bool((found.value[row, column] - value).abs() <= 5 * noise), (name, row, column)


def test_tied_networks_that_grow_have_no_number() -> None:
    diagram = phase_diagram(LINEAR, ("h.weight_var", [0.5, 1.2]), ("h.bias_mean", [0.0]), tied_steps=30)
    assert diagram.converged.tolist() == [[True, False]]
    assert [bool(q.defined[0, 1]) for q in diagram.quantities.values()] == [False] * len(diagram.quantities)
    with pytest.raises(SpecError, match="tied_steps: 3"):
        phase_diagram(LINEAR, ("h.weight_var", [0.5]), ("h.bias_mean", [0.0]), tied_steps=3)
