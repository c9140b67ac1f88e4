"""The starts that libraries in use give to LSTMs, for comparison: what they do to the forget gate is done to the
retention gate of any cell."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.init.naming import draw_named
from isornn.init.writing import Module
from isornn.modes import usual_modes
from isornn.nn import draws
from isornn.nn.gate_tensors import recurrent_layers


@usual_modes()
def stacked_orthogonal_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """One orthogonal matrix for the stack of all gates' recurrent matrices, one for their input matrices; biases 0.

    The stack W (GN, N) has ``W^T W = I``, so a gate's own W_k is not orthogonal and has weight_var 1/G; likewise the
    stack of input matrices (GN, D), or its rows where D > GN.

    Raises:
        ModuleError: no recurrent layer, or a parametrised one.

    Source: CleanRL, ppo_atari_lstm.py: ``torch.nn.init.orthogonal_`` of every weight of an LSTM. speechbrain's
    ``rnn_init`` does so to the recurrent weights alone and leaves torch's input weights and biases.

    >>> from torch import nn
    >>> lstm = stacked_orthogonal_(nn.LSTM(3, 4))
    >>> torch.allclose(lstm.weight_hh_l0.T @ lstm.weight_hh_l0, torch.eye(4), atol=1e-6)
    True
    """
    draw_named("stacked_orthogonal", module, generator)
    with torch.no_grad():
        for layer in recurrent_layers(module):
            gates = layer.gates.values()
            _stack([gate.recurrent for gate in gates], generator)
            _stack([gate.input for gate in gates], generator)
            _stack([gate.previous_input for gate in gates], generator)
    return module


def forget_bias_3_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """torch's own start with 3 for one of the retention gate's two biases; the other stays random.

    Weights are uniform in +-1/sqrt(N); biases are normal with torch's variance, 1/(3N) each.

    Raises:
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: neuralhydrology, modelzoo/cudalstm.py with ``initial_forget_bias: 3``, as in its published configurations.

    >>> from torch import nn
    >>> forget = forget_bias_3_(nn.LSTM(3, 1000)).bias_ih_l0[1000:2000]
    >>> bool(abs(forget.mean() - 3) < 0.01)
    True
    """
    return draw_named("forget_bias_3", module, generator)


def forget_bias_3_to_6_(module: Module, *, generator: torch.Generator | None = None) -> Module:
    """torch's own start with the retention gate's bias drawn from U(3, 6) for each unit: time constants of 21 to 404.

    Raises:
        SpecError: a cell without a retention gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: Beck et al. 2024, xLSTM, whose mLSTM spaces the forget biases of its heads evenly from 3 to 6, and whose
    gate's weights are 0; only the biases are taken over here.

    >>> from torch import nn
    >>> forget = forget_bias_3_to_6_(nn.LSTM(3, 8)).bias_ih_l0[8:16]
    >>> bool((forget >= 3).all() and (forget <= 6).all())
    True
    """
    return draw_named("forget_bias_3_to_6", module, generator)


def doubled_chrono_(module: Module, length: float, *, generator: torch.Generator | None = None) -> Module:
    """torch's own weights with chrono's biases drawn into both bias vectors, which add; all other biases 0.

    The retention gate has ``ln r + ln r'``, r and r' ~ U(1, T-1), an LSTM's input gate the negative: the median time
    constant is about T^2 / 5, not T / 2. The sums are those of N evenly spaced quantiles of that law, drawn for each
    unit.

    Args:
        module: as `apply_`.
        length: T, the number of steps to bridge, above 2.
        generator: source of all draws.

    Raises:
        SpecError: length, or a cell without a retention gate (vanilla).
        ModuleError: as `apply_`; among others ``bias=False``.

    Source: NVIDIA NeMo, collections/common/parts/rnn.py, LSTMDropout with ``t_max``.

    >>> from torch import nn
    >>> lstm = doubled_chrono_(nn.LSTM(3, 1000), 100, generator=torch.Generator().manual_seed(0))
    >>> i, f, _, _ = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    >>> bool((i == -f).all() and 1700 < f.exp().median() < 2100)
    True
    """
    return draw_named("doubled_chrono", module, generator, length)


def _stack(matrices: Sequence[Tensor | None], generator: torch.Generator | None) -> None:
    there = [matrix for matrix in matrices if matrix is not None]
    if there:
        rows = [len(matrix) for matrix in there]
        for matrix, block in zip(there, draws.haar((sum(rows), there[0].shape[1]), generator).split(rows), strict=True):
            matrix.copy_(block)
