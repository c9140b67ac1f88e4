"""What `print` and the interpreter show of specs, quantities and analyses: short, whatever the number of units."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from isornn.cells import CELLS, LSTM, TRNN, BiasLaw, Gate, Input, Spec, Vanilla
from isornn.cells.random_specs import random_spec
from isornn.formatting import with_error_of
from isornn.init import spec_of
from isornn.theory.analysis import analyze
from isornn.theory.carry import carry_of
from isornn.theory.depth.analysis import analyze_stack
from isornn.theory.quantity import Quantity
from isornn.theory.spectra import spectrum

GRADES = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)


def test_a_module_read_back_has_a_short_repr_whatever_its_number_of_units() -> None:
    shown = [repr(spec_of(nn.LSTM(3, units))) for units in (16, 256)]
    assert all(len(text) < 800 for text in shown)
    assert "256 values" in shown[1]


@pytest.mark.parametrize("name", CELLS)
def test_the_repr_of_a_spec_without_empirical_laws_is_that_spec(name: str) -> None:
    spec = random_spec(CELLS[name](), torch.Generator().manual_seed(0))
    names = {"Spec": Spec, "Gate": Gate, "Input": Input, "BiasLaw": BiasLaw, type(spec.cell).__name__: CELLS[name]}
    assert eval(repr(spec), names) == spec


def test_fields_that_are_their_defaults_are_left_out_and_batches_are_shown() -> None:
    assert repr(Spec(Vanilla())) == "Spec(Vanilla(nonlinearity='tanh', slope=0.25), {})"
    assert repr(Gate(bias_mean=GRADES)) == f"Gate(bias_mean={GRADES!r})"
    changed = Spec(LSTM(), {"f": Gate(bias_mean=1.0)}, Input(correlation=0.5), "fixed")
    expected = "{'f': Gate(bias_mean=1.0)}, input=Input(correlation=0.5), biases='fixed')"
    assert repr(changed) == f"Spec(LSTM(gate='sigmoid'), {expected}"


def test_an_analysis_prints_a_line_for_each_quantity() -> None:
    answer = analyze(Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)}), tied=True, steps=4)
    lines = str(answer).splitlines()
    residual = float(answer.fixed_point.residual)
    assert lines[0] == f"vanilla, engine quadrature; fixed point settled (residual {residual:.2g})"
    shown = dict(line.split(maxsplit=1) for line in lines[1:])
    assert shown["xi"] == with_error_of(answer.xi.number())  # as the command line has it
    assert answer.tied is not None
    assert shown["tied.chi"] == str(answer.tied.chi)
    assert shown.keys() == {name for name, _ in answer.quantities()} | {
        "tied." + name for name, _ in answer.tied.numbers()
    }
    assert repr(answer).startswith("Analysis(Vanilla(") and len(repr(answer)) < 400


def test_a_batch_prints_ranges() -> None:
    answer = analyze(Spec(Vanilla(), {"h": Gate(2.0, bias_mean=GRADES)}), length=5)
    assert "tensor(" not in str(answer)
    assert len(str(answer).splitlines()) == 12
    assert f"; {len(GRADES)} of {len(GRADES)} fixed points settled" in str(answer)


def test_a_batch_has_no_single_number() -> None:
    several = Quantity.of(GRADES)
    for single in (several.number, several.error, several.reason):
        with pytest.raises(ValueError, match=r"a batch of specs, shape \(3,\), has no single number"):
            single()


def test_quantities_print_their_reason() -> None:
    missing = Quantity.of(torch.zeros(()), reasons={"no such theory": True})
    assert (str(missing), repr(missing)) == ("undefined: no such theory", "Quantity(undefined: no such theory)")
    nowhere = Quantity.of(torch.zeros(2, 2), reasons={"no such theory": True})
    assert str(nowhere) == "shape (2, 2), 4 without a value"
    assert str(Quantity(GRADES, torch.zeros(3))) == "shape (3,), 1 to 5"


@pytest.mark.parametrize("shape", [(), (2,)])
def test_what_requires_grad_is_shown_and_written_without_a_warning(shape: tuple[int, ...]) -> None:
    number = torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True)
    spec = Spec(Vanilla(), {"h": Gate(weight_var=number, input_var=1.0)}, Input(variance=number))
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        answer, stack = analyze(spec, length=5), analyze_stack([spec], length=5)
        assert answer.chi.value.requires_grad
        assert str(answer) and repr(answer) and str(stack.reach)
        if not shape:
            assert Spec.from_json(spec.to_json()).gates["h"].weight_var == 0.5
            assert answer.to_json()["chi"] == answer.chi.number()
    finally:
        torch.set_warn_always(always)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("biases", ["redrawn", "fixed"])
def test_numbers_that_require_grad_are_read_without_a_warning(biases: Literal["redrawn", "fixed"]) -> None:
    numbers = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.7, 0.4)]
    size, part = numbers
    forget = Gate(input_var=size, bias_mean=size, bias_var=part)
    spec = Spec(TRNN(), {"f": forget, "z": Gate(input_var=size)}, Input(size, part, mean=part), biases)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        carry, density = carry_of(spec), spectrum(spec)
    finally:
        torch.set_warn_always(always)
    plain = {"f": Gate(input_var=0.7, bias_mean=0.7, bias_var=0.4), "z": Gate(input_var=0.7)}
    same = Spec(TRNN(), plain, Input(0.7, 0.4, mean=0.4), biases)
    assert carry.mean == pytest.approx(carry_of(same).mean, rel=1e-12)
    assert density.mean == pytest.approx(spectrum(same).mean, rel=1e-12)


def test_an_input_mean_of_redrawn_networks_has_a_gradient() -> None:
    mean = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    spec = Spec(Vanilla(), {"h": Gate(weight_var=1.5, input_var=1.0)}, Input(1.0, 0.3, mean=mean))

    def correlation(shift: float) -> Tensor:
        return analyze(spec.replace("input.mean", mean + shift)).fixed_point.correlation.value

    (slope,) = torch.autograd.grad(correlation(0.0), mean)
    rise = float((correlation(1e-4) - correlation(-1e-4)).detach())
    assert float(slope) == pytest.approx(rise / 2e-4, rel=1e-4)
