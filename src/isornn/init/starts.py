"""The starts by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from isornn.cells import Cell, Input, Spec, SpecError
from isornn.cells.arguments import check_function
from isornn.init.data import Report, start_for_batch_
from isornn.init.input_warnings import StandardisedInput
from isornn.init.naming import draw_named
from isornn.init.writing import Module, set_layers
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.theory.critical_points.point import critical, isometric
from isornn.warn import warn

_UNIT_INPUT = Input()


def apply_(module: Module, spec: Spec, *, generator: torch.Generator | None = None) -> Module:
    """Draw every recurrent layer's weights and biases by the law of ``spec``, in place.

    For each gate k: ``W_k,ij ~ N(0, weight_var/N)`` or the gate's ensemble (``"orthogonal"``: Haar times
    sqrt(weight_var); ``{"margin": m}``: singular values sqrt(weight_var) U(1-m, 1+m) between Haar bases;
    ``"identity"``), ``U_k,ij ~ N(0, input_var/D)``, ``V_k,ij ~ N(0, previous_input_var/D)``,
    ``b_k,i ~ N(bias_mean, bias_var)`` plus the gate's bias law. All laws of a layer share one uniform variate per unit,
    so that a law with sign -1 mirrors its partner unit by unit. ``uniform_gate`` takes the variate from
    (1/N, 1 - 1/N), as its authors do, and so stays finite.

    Args:
        module: a recurrent module or one that contains some; (N, D) of each layer are its own.
        spec: plain numbers, no batch; its cell is that of every recurrent layer in the module.
        generator: source of all draws.

    Returns:
        ``module``.

    Raises:
        SpecError: the spec's cell is not the module's; the spec holds a batch of numbers, or one that the module's
            dtype cannot hold (half precision ends at 65504).
        ModuleError: no recurrent layer; a bias asked for where there is none (``bias=False``); a parametrised weight;
            identity matrices for an LSTM with ``proj_size``; DistributedDataParallel in several processes, which would
            then differ; parameters that are split between processes (FSDP).

    >>> from torch import nn
    >>> from isornn.cells import LSTM, Gate
    >>> spec = Spec(LSTM(), {"f": Gate(weight_var=1.0, bias_mean=5.0, ensemble="orthogonal")})
    >>> lstm = apply_(nn.LSTM(3, 4), spec, generator=torch.Generator().manual_seed(0))
    >>> (lstm.bias_ih_l0 + lstm.bias_hh_l0)[4:8].tolist()
    [5.0, 5.0, 5.0, 5.0]
    """
    return set_layers(module, lambda _: spec, generator)


def critical_(
    module: Module,
    length: float | None = None,
    *,
    batch: Any = None,
    fixed: Mapping[str, Any] | None = None,
    input: Input | None = None,
    generator: torch.Generator | None = None,
    report: Report | None = None,
) -> Module:
    """Initialise every recurrent layer for sequences of ``length`` steps, each for the inputs that a batch gives it.

    With ``batch`` the model is run on it, and every recurrent layer, in the order in which they are called, is drawn
    for what it receives from the layers below as they then are: input weights are divided by the standard deviation of
    the layer's input, and every bias is lowered by ``U mu``, what the input's mean adds to its gate. A feature map
    ``Phi``, which a cell such as minimalRNN writes in a candidate's place, gets mean 0 and a candidate's mean square,
    .64. Everything else in the model stays bit by bit as it was. Without a batch all layers are drawn by one law, that
    of `isornn.critical`'s spec for ``input``, and feature maps stay as they are.

    ``weight_var`` 1e-5 but on a gate that only shapes the output (1); candidates get the input with variance 4, the
    write gate with 1, as does an output gate that is 0 at ``u = 0`` (tanh); the retention gate's bias is ``ln r`` per
    unit (an LSTM's b_i = -b_f), with ``ln r ~ U(0, ln high)`` for a third of the units and ``r = high`` for the others.

    The meaning of ``length``: with no input to the retention gate and no recurrent weights, the mean square of a small
    perturbation of the state is 1/e of its value after one step exactly T steps after that; this gives high, 2.5 to
    3 T. On inputs of the law ``input`` the reach, of states that have settled, is between T/2 and 2 T: 1.03 T for an
    LSTM, 0.61 T for a GRU; `isornn.critical` gives it. Where the gates alone do not determine it, as with ``fixed``
    fields and for a cell without a retention gate, the theory is computed, with a warning for a condition that does not
    hold.

    Args:
        module: as `apply_`; a cell without a retention gate is set by orthogonal weights instead, a ReLU network by
            identity matrices.
        length: T from 2 to 1e6, the number of steps to bridge; with a batch by default those of each layer's longest
            sequence.
        batch: what the model is called with: a tensor or PackedSequence, a tuple of positional arguments, or a dict of
            keyword arguments; or a function that is called with the model and runs it, where that is not by forward.
            Some dozens of typical sequences are enough. Padding is measured as input unless the layer is given lengths
            (PackedSequence), or a loop keeps the states of sequences that have ended while others go on. The model is
            run in eval mode; one that reads its targets in training and its own outputs in eval mode is measured by
            ``lambda model: model.train()(x)``.
        fixed: as `isornn.critical`.
        input: law of every layer's input, in place of a batch; standardised if neither is given, with a warning.
        generator: source of all draws.
        report: called with a `LayerStart` for every layer that was set for a batch: ``print`` shows what was measured.

    Raises:
        SpecError: length; input whose standard deviation is below 1e-5 or above 1e6; an argument of another type; a
            field of ``fixed`` that does not exist or is what sets the length; a cell that is not pointwise; a cell
            whose memory no bias or recurrent matrix sets, as ``rg_lru``, whose own start is the one to use.
        ModuleError: as `apply_`; among others ``bias=False``.
        ValueError: a batch that is empty, gives a layer NaN or infinity, or sequences of one step where there is no
            length, or reaches no recurrent layer. Where it reaches some only, the others are set for standardised
            input, with a warning.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.LSTM(8, 4, batch_first=True))
    >>> batch = torch.linspace(0, 1, 2 * 50 * 3).reshape(2, 50, 3)
    >>> model = critical_(model, batch=batch, generator=torch.Generator().manual_seed(0))
    >>> gru = critical_(nn.GRU(10, 4), 100, input=Input.of(nn.functional.one_hot(torch.arange(10))))
    >>> lstm = critical_(nn.LSTM(3, 4), 100, input=Input())
    >>> i, f, _, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    >>> bool((f > 0).all() and (i == -f).all())
    True
    """

    def solved(cell: Cell, steps: float, law: Input) -> Spec:
        point = critical(cell, steps, fixed=fixed, input=law)
        if fixed or not point.probably_holds():
            point.warn_of_unmet_conditions()
        return point.spec

    check_function("report", report)
    if batch is not None:
        if input is not None:
            raise SpecError("input", input, "it is measured where a batch is given; give one of the two")
        start_for_batch_(module, batch, length, solved, generator, report)
        return module
    given: object = length  # a batch, if the caller forgot its name
    if length is None or isinstance(given, torch.Tensor):
        raise SpecError("length", length, "it must be a number of steps, or that of a batch: critical_(model, batch=x)")
    if input is None:
        message = "critical_ takes the input as standardised: give batch=, or input=isornn.Input.of(...)"
        warn(message, StandardisedInput)
        input = Input()
    return _by_cell(module, lambda cell: solved(cell, length, input), generator)


def isometric_(
    module: Module,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Literal["redrawn", "fixed"] = "fixed",
    generator: torch.Generator | None = None,
) -> Module:
    """Initialise every recurrent layer near isometry, with reach ``length``: `apply_` of `isornn.isometric`'s spec.

    Every unit is slow: the retention gate's bias is ``ln r``, ``r ~ U(low, high)``. `critical_` trains better. The spec
    is solved for with the full theory, which takes some seconds for an LSTM or GRU; there is a warning for conditions
    that it does not meet.

    Args:
        module, length, input, generator: as `critical_`.
        fixed, biases: as `isornn.isometric`.

    Raises:
        SpecError, ModuleError: as `critical_`; a cell whose units differ by more than their biases.

    >>> from torch import nn
    >>> from isornn.cells import Minimal
    >>> from isornn.nn import RNN
    >>> layer = isometric_(RNN(Minimal(), 3, 4), 100, biases="redrawn")
    >>> len(layer.gate_parameters("u").biases[0].unique())  # one bias for all units
    1
    """

    def solved(cell: Cell) -> Spec:
        point = isometric(cell, length, fixed=fixed, input=input, biases=biases)
        point.warn_of_unmet_conditions()
        return point.spec

    return _by_cell(module, solved, generator)


def standard_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """The usual start: recurrent matrices orthogonal gate by gate, input matrices Glorot uniform, forget gate's bias 1.

    ``W_k W_k^T = I``; ``U_k,ij ~ U(-a, a)``, ``a^2 = 6/(D+N)``; biases 0 but 1, once, on the retention gate (LSTM f,
    GRU z, minimal u, typed f; a vanilla network has none). In the spec's convention: weight_var 1,
    input_var 2D/(D+N).

    Args:
        module: as `apply_`, set in place.
        generator: source of all draws.

    Returns:
        The same module.

    Raises:
        ModuleError: as `apply_`; among others gated modules with ``bias=False``.

    Sources: Glorot & Bengio 2010; Saxe et al. 2014; Jozefowicz et al. 2015 (forget bias 1).

    >>> from torch import nn
    >>> gru = standard_(nn.GRU(3, 4, num_layers=2, bidirectional=True))
    >>> (gru.bias_ih_l1_reverse + gru.bias_hh_l1_reverse)[4:8].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return draw_named("standard", module, generator)


def orthogonal_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` without the retention gate's bias: ``W_k W_k^T = I``, Glorot uniform ``U_k``, biases 0.

    Args:
        module: as `apply_`, set in place.
        generator: source of all draws.

    Returns:
        The same module.

    Raises:
        ModuleError: no recurrent layer, or a parametrised one.

    Source: Saxe et al. 2014.

    >>> from torch import nn
    >>> rnn = orthogonal_(nn.RNN(3, 4, bias=False))
    >>> torch.allclose(rnn.weight_hh_l0 @ rnn.weight_hh_l0.T, torch.eye(4), atol=1e-6)
    True
    """
    return draw_named("orthogonal", module, generator)


def glorot_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """Glorot uniform for each gate's own matrices: ``W_k,ij ~ U(-a, a)``, ``a^2 = 6/(2N)``; ``U_k`` with 6/(D+N).

    In the spec's convention weight_var 1 and input_var 2D/(D+N). Biases 0. With ``proj_size`` P the recurrent matrices
    and ``weight_hr`` have 6/(N+P).

    Args:
        module: as `apply_`, set in place.
        generator: source of all draws.

    Returns:
        The same module.

    Raises:
        ModuleError: no recurrent layer, or a parametrised one.

    Source: Glorot & Bengio 2010, eq. 16.

    >>> from torch import nn
    >>> rnn = glorot_(nn.RNN(3, 4))
    >>> bool(rnn.weight_hh_l0.abs().max() <= (6 / 8) ** 0.5)
    True
    """
    return draw_named("glorot", module, generator)


def identity_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """Every recurrent matrix the identity, input matrices Glorot uniform, biases 0.

    Args:
        module: as `apply_`, set in place.
        generator: source of all draws.

    Returns:
        The same module.

    Raises:
        ModuleError: no recurrent layer, a parametrised one, or ``proj_size``, where no matrix is square.

    Source: Le, Jaitly & Hinton 2015 (for ReLU networks; their input matrices are N(0, 1e-6)).

    >>> from torch import nn
    >>> identity_(nn.RNN(3, 2, nonlinearity="relu")).weight_hh_l0.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return draw_named("identity", module, generator)


def chrono_(module: Module, length: float, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` with the retention gate's bias ``ln r``, ``r ~ U(1, T-1)`` for each unit; an LSTM's b_i = -b_f.

    Unit by unit the gate then forgets with a time constant spread over 1 to T - 1 steps.

    Args:
        module: as `apply_`.
        length: T, the number of steps to bridge, above 2.
        generator: source of all draws.

    Returns:
        The same module, set in place.

    Raises:
        SpecError: length, or a cell without a retention gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: Tallec & Ollivier 2018.

    >>> from torch import nn
    >>> lstm = chrono_(nn.LSTM(3, 4), 100)
    >>> i, f, _, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    >>> bool((0 <= f).all() and (f.exp() <= 99.001).all() and (i == -f).all())
    True
    """
    return draw_named("chrono", module, generator, length)


def uniform_gate_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """`standard_` with the retention gate's bias ``ln(v/(1-v))``, ``v ~ U(1/N, 1 - 1/N)``; an LSTM's b_i = -b_f.

    The gate's value is then uniform over the units. A gate that only modulates the retention gate, as the refine gate
    of ``ur_lstm`` and ``ur_gru``, has the mirrored bias too.

    Args:
        module: as `apply_`, set in place.
        generator: source of all draws.

    Returns:
        The same module.

    Raises:
        SpecError: a cell without a retention gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: Gu, Gulcehre, Paine, Hoffman & Pascanu 2020 (uniform gate initialisation).

    >>> from torch import nn
    >>> gate = uniform_gate_(nn.GRU(3, 8)).bias_ih_l0[8:16].sigmoid()
    >>> bool((gate >= 1 / 8).all() and (gate <= 7 / 8).all())
    True
    """
    return draw_named("uniform_gate", module, generator)


def _by_cell(module: Module, spec_of_cell: Callable[[Cell], Spec], generator: torch.Generator | None) -> Module:
    specs: dict[Cell, Spec] = {}

    def spec_for(layer: RecurrentLayer) -> Spec:
        if layer.cell not in specs:
            specs[layer.cell] = spec_of_cell(layer.cell)
        return specs[layer.cell]

    return set_layers(module, spec_for, generator)
