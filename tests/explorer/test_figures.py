"""What the page shows, against other routes to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isornn.cells import BiasLaw, Gate, Input, Spec, cell_named
from isornn.explorer import work
from isornn.explorer.cobweb import cobweb_caption, cobweb_of, cobweb_panel
from isornn.explorer.controls import opening
from isornn.explorer.time_scales import time_scales, time_scales_caption, units_of
from isornn.figures import Curve, Panel
from isornn.present.analysis import response_panel
from isornn.present.plotly import figure_of
from isornn.present.spectrum import spectrum_panel
from isornn.theory import analyze, spectrum

PEEPHOLE = Spec(
    cell_named("peephole"),
    {"i": Gate(1, 1), "f": Gate(1, 1, bias_mean=5.0), "g": Gate(1, 1)},
)


def test_the_cobweb_ends_at_the_stable_correlation_with_slope_chi() -> None:
    answer = analyze(PEEPHOLE, length=1)  # C = 1 is not stable here
    stable, chi = answer.fixed_point.correlation.number(), answer.chi.number()
    second = answer.fixed_point.second_moment.number()
    assert stable is not None and chi is not None and second is not None
    found = cobweb_of(PEEPHOLE, second, (stable, 0.0))
    assert 0.2 < stable < 0.4
    assert np.interp(stable, found.c, found.image) == pytest.approx(stable, abs=1e-4)
    assert np.interp(stable, found.c, np.gradient(found.image, found.c)) == pytest.approx(chi, abs=2e-3)
    assert np.all(np.diff(found.orbit) > 0) and 0 < found.orbit[-1] < stable
    _, _, path, _ = cobweb_panel(found).curves
    on_diagonal = np.array(path.x)[0::2] == np.array(path.y)[0::2]
    assert on_diagonal.all()  # up to the map, across to the diagonal


def test_a_histogram_has_each_cells_density_up_to_its_upper_edge() -> None:
    """plotly's "vh" goes to the new value first; a line goes straight."""
    panel = Panel("", "x", "y", [Curve([0.0, 1.0], [2.0, 2.0], style=style) for style in ("steps", "line")])
    assert [trace.line.shape for trace in figure_of(panel).data] == ["vh", "linear"]


def test_without_a_map_the_path_is_followed_with_its_errors() -> None:
    found = cobweb_of(opening(cell_named("lstm")), 0.0505, (1.0, 0.0))
    assert not len(found.c) and "several states" in found.why and "standard errors" in cobweb_caption(found)
    assert abs(found.orbit[0]) < 4 * found.stderr[0] and found.orbit[-1] == pytest.approx(1, abs=1e-3)
    assert np.all(found.stderr[:3] > 0)


def test_time_scales_are_those_of_sampled_gates() -> None:
    """Typed: A = sigma(u_f), u_f given the unit's bias normal with the input's variance."""
    law = BiasLaw("timescale", 2.0, 400.0)
    spec = Spec(cell_named("t_rnn"), {"f": Gate(input_var=0.5, bias_law=law), "z": Gate(input_var=1.0)}, biases="fixed")
    found = time_scales(spec, 0.3)
    generator = torch.Generator().manual_seed(0)
    bias = law.quantile(torch.rand(20000, 1, generator=generator, dtype=torch.float64))
    gates = (bias + 0.5**0.5 * torch.randn(20000, 200, generator=generator, dtype=torch.float64)).sigmoid()
    sampled = -1 / gates.square().mean(-1).log()
    for steps in (5.0, 20.0, 100.0):
        share = float((sampled >= steps).double().mean())
        assert found.beyond(steps) == pytest.approx(share, abs=0.015)
    assert found.reached_by(0.5) == pytest.approx(float(sampled.median()), rel=0.05)
    assert "90% at least" in time_scales_caption(found, 100)


def test_units_alike_have_one_time_scale_and_some_have_none() -> None:
    spec = Spec(cell_named("t_rnn"), {"f": Gate(bias_mean=3.0), "z": Gate(input_var=1.0)})
    one = units_of(analyze(spec, length=1))
    assert not isinstance(one, str) and one.steps == pytest.approx([-0.5 / math.log(1 / (1 + math.exp(-3)))])
    none = units_of(analyze(opening(cell_named("vanilla")), length=1))
    assert isinstance(none, str) and "no time scale of their own" in none


def test_the_fading_figure_marks_the_reach_where_the_curve_is_down_to_1_e() -> None:
    answer = analyze(PEEPHOLE, length=200)
    curve, mark = figure_of(response_panel(answer, 200)).data
    assert mark.x[0] == pytest.approx(1 + (answer.reach.number() or 0))
    assert np.interp(mark.x[0], curve.x, curve.y) == pytest.approx(1 / math.e, rel=5e-3)
    assert curve.y[0] == 1 and curve.x[-1] == 200


def test_the_spectrum_figure_has_the_whole_density() -> None:
    """Typed with hard gates: s = clip(0.2 u + 0.5, 0, 1), u of variance 4, is 0 or 1 where |u| > 2.5."""
    found = spectrum(Spec(cell_named("t_rnn", {"gate": "hard_sigmoid"}), {"f": Gate(input_var=4.0)}))
    curve, *stems = figure_of(spectrum_panel(found)).data
    beyond = 0.5 * math.erfc(1.25 / math.sqrt(2))
    assert [stem.name for stem in stems] == [f"{100 * beyond:.4g} % at {place}" for place in (0, 1)]
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(1 - 2 * beyond, abs=5e-3)


def test_answers_are_plain_and_say_what_is_missing() -> None:
    found = work.numbers(work.to_text(opening(cell_named("minimal"))), 500)
    xi = found["readings"][0]
    assert (xi["symbol"], xi["why"]) == ("ξ", "") and xi["sure"].startswith("exact")
    assert found["against"].startswith("Short of the T = 500 steps wanted by a factor")
    grows = Spec(cell_named("vanilla", {"nonlinearity": "identity"}), {"h": Gate(2.0, 1.0)})
    found = work.numbers(work.to_text(grows), 10)
    assert found["readings"][0]["value"] == "undefined" and "no fixed point" in found["readings"][0]["why"]
    assert found["moments"] is None and "no fixed point" in found["why"]
    chaotic = Spec(cell_named("vanilla"), {"h": Gate(4.0, 0.0, bias_var=0.1)}, Input(0.0, 1.0))
    chi_1 = next(r for r in work.numbers(work.to_text(chaotic), 10)["readings"] if r["name"] == "chi_1")
    assert float(chi_1["value"]) > 1
    still = work.numbers(work.to_text(Spec(cell_named("t_mr"), {"z": Gate()})), 10)
    assert still["readings"][0]["value"] in ("infinite", "undefined") and still["readings"][0]["why"]


def test_a_spectrum_that_is_not_known_says_why() -> None:
    spec = opening(cell_named("vanilla")).replace("h.ensemble", "identity")
    found = work.jacobian_spectrum(work.to_text(spec))
    assert (
        found["caption"].startswith("None: the theory of random matrices does not cover identity")
        and found["figure"]["data"] == []
    )


def test_a_starting_point_is_solved_for_and_brings_its_line() -> None:
    text = work.to_text(opening(cell_named("peephole")))
    found = work.starting_point("critical", text, 128, 49, 100)
    reach = analyze(work.from_text(found["spec"]), length=1).reach.number()
    assert reach == pytest.approx(100, rel=0.01) and found["unmet"] == []
    assert found["python"] == "isornn.init.critical_(module, length=100)"
    assert work.from_text(work.starting_point("torch", text, 10, 20, 5)["spec"]).gates["f"].input_var == 20 / 30


def test_simulated_networks_have_the_spectrum_that_is_computed() -> None:
    found = spectrum(PEEPHOLE)
    answer = work.simulated_spectrum(work.to_text(PEEPHOLE), 0.5)
    (curve,) = answer["figure"]["data"]
    edges, density = np.array(curve["x"]), np.array(curve["y"][1:])
    assert density @ np.diff(edges) == pytest.approx(1)
    mean_square = density @ (np.diff(edges) * (edges[1:] + edges[:-1]) ** 2 / 4)
    assert mean_square == pytest.approx(found.mean, rel=0.1) and "192 units" in answer["caption"]
