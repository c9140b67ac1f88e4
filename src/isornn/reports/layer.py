"""All figures of one layer, and what the layer is."""

from __future__ import annotations

from collections.abc import Iterator

from isornn.diagnosis import DefaultDraw, LayerDiagnosis
from isornn.formatting import counted, share, with_error
from isornn.reports.gates import gates_panel, time_scales_panel
from isornn.reports.jacobian import jacobian_panel, lyapunov_panel
from isornn.reports.moments import moments_panel
from isornn.reports.panel import ReportPanel
from isornn.reports.profiles import backward_panel, forward_panel, loss_panel
from isornn.reports.summary import NO_START

WEIGHT_COLUMNS = ("gate", "P E[W²]", "D E[U²]", "mean bias", "bias variance", "largest singular value of W")


def panels(layer: LayerDiagnosis) -> tuple[ReportPanel, ...]:
    """The figures in the order in which they are read: how far it sees, then why."""
    loss = () if layer.loss is None else (loss_panel(layer, layer.loss),)
    return (
        backward_panel(layer),
        *loss,
        forward_panel(layer),
        gates_panel(layer),
        time_scales_panel(layer.memory),
        moments_panel(layer),
        jacobian_panel(layer),
        lyapunov_panel(layer),
    )


def facts(layer: LayerDiagnosis) -> tuple[tuple[str, str], ...]:
    """The layer, its input, and how closely the replay that everything is measured on reproduces its output."""
    return tuple(_facts(layer))


def _facts(layer: LayerDiagnosis) -> Iterator[tuple[str, str]]:
    info, inputs, weights = layer.info, layer.inputs, layer.weights
    options = ", ".join(f"{name} = {value}" for name, value in info.options.items())
    width = f"{info.inputs} inputs, {info.hidden} units"
    yield "layer", ", ".join(filter(None, (info.kind, width, options, info.dtype, info.device)))
    shorter = "" if info.mean_steps == info.steps else f" at most, {info.mean_steps:.4g} on average"
    yield "batch", f"{counted(info.sequences, 'sequence')} of {counted(info.steps, 'step')}{shorter}"
    if info.chains > 1:
        yield "calls", f"{info.calls}, which make {info.chains} separate sequences; measured: the longest"
    yield "input", f"mean {inputs.mean:.3g}, sd {inputs.std:.3g}, largest {inputs.largest:.3g}"
    for name, quantity in (
        ("input, correlation of sequences", inputs.correlation),
        ("input, correlation from step to step", inputs.correlation_in_time),
    ):
        yield name, with_error(quantity) if quantity.number() is not None else f"not known: {quantity.reason()}"
    yield "input, steps that repeat the last", share(inputs.padding)
    yield "start", NO_START if layer.start is None else str(layer.start)
    for name, draw in (
        ("recurrent weights", weights.recurrent_default),
        ("input weights", weights.input_default),
        ("biases", weights.bias_default),
    ):
        if draw is not None:
            yield name, _default(draw)
    residual, tolerance = layer.check.residual, layer.check.tolerance
    yield "replay in float64 against the module", f"off by {residual:.1g}, at most {tolerance:.1g} is allowed"


def weight_rows(layer: LayerDiagnosis) -> tuple[tuple[str, ...], ...]:
    """Each gate's weights and biases, under `WEIGHT_COLUMNS`."""
    return tuple(
        (
            name,
            f"{gate.weight_var:.4g}",
            f"{gate.input_var:.4g}",
            f"{gate.bias_mean:.4g}",
            f"{gate.bias_var:.4g}",
            f"{float(gate.singular_values[0]):.4g}" if len(gate.singular_values) else "-",
        )
        for name, gate in layer.weights.gates.items()
    )


def _default(draw: DefaultDraw) -> str:
    if draw.likely:
        return f"look like torch's default draw (p = {draw.p_value:.2g})"
    why = "outside its bounds" if not draw.within else f"p = {draw.p_value:.1g}"
    return f"are not torch's default draw ({why})"
