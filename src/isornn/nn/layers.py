"""A layer for each of the nine cells: ``LSTM(input_size, hidden_size)`` is ``RNN(cells.LSTM(), ...)``.

Equations are in the cell definitions' names: ``u_k = W_k r + U_k x_t + V_k x_(t-1) + b_k`` with r the state unless said
otherwise, sigma the logistic function (option ``gate="hard_sigmoid"``), * pointwise, x_0 = 0 unless given.
Shapes, parameters and errors are those of `RNN`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from isornn import cells
from isornn.nn.rnn import RNN

__all__ = ["GRU", "LSTM", "RNN", "TGRU", "TLSTM", "TRNN", "ChoGRU", "MinimalRNN", "PeepholeLSTM", "VanillaRNN"]


class _Named(RNN):
    """An `RNN` of one kind of cell; what is not the layer's is the cell's option.

    Raises:
        OptionError: the cell has no such option or value.
        ValueError: as `RNN`.
    """

    kind: ClassVar[type[cells.Cell]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        batch_first: bool = False,
        untied_steps: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            cells.cell_named(self.kind.name, options),
            input_size,
            hidden_size,
            bias=bias,
            batch_first=batch_first,
            untied_steps=untied_steps,
            device=device,
            dtype=dtype,
        )


class VanillaRNN(_Named):
    """``h = tanh(u_h)``; option ``nonlinearity``: tanh, sigmoid, relu, identity. Source: Gilboa et al. 2019 Table 1.

    >>> out, h = VanillaRNN(3, 5, nonlinearity="relu")(torch.zeros(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    kind = cells.Vanilla


class MinimalRNN(_Named):
    """``f = sigma(u_u)``, ``h = f*h + (1-f)*x``: input_size equals hidden_size.

    Source: Chen, Pennington, Schoenholz 2018, eqs. 16-18.

    >>> MinimalRNN(3, 5)
    Traceback (most recent call last):
    ...
    ValueError: input_size: 3 is not allowed; the input of minimal enters pointwise, so it equals hidden_size, 5: ...
    """

    kind = cells.Minimal


class GRU(_Named):
    """``z, r = sigma(u_z), sigma(u_r)``, ``h = z*h + (1-z)*tanh(u_nx + r*u_nh)``: torch.nn.GRU's cell.

    nx reads the input only, nh the state only; gates are stacked r, z, nx in ``weight_ih_l0``, r, z, nh in
    ``weight_hh_l0`` (as torch has them) and r, z, nx, nh in ``bias_l0``.

    >>> GRU(3, 5).weight_ih_l0.shape, GRU(3, 5).bias_l0.shape
    (torch.Size([15, 3]), torch.Size([20]))
    """

    kind = cells.GRU


class ChoGRU(_Named):
    """``z, r = sigma(u_z), sigma(u_r)``, ``h = z*h + (1-z)*tanh(u_n)``; the matrix of n reads ``r*h``.

    Source: Cho et al. 2014; Gilboa et al. 2019 Table 1.

    >>> ChoGRU(3, 5).weight_hh_l0.shape
    torch.Size([15, 5])
    """

    kind = cells.ChoGRU


class LSTM(_Named):
    """``c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)``, ``h = sigma(u_o)*tanh(c)``: torch.nn.LSTM's cell, state (h, c).

    >>> out, (h, c) = LSTM(3, 5, batch_first=True)(torch.zeros(2, 7, 3))
    >>> out.shape, c.shape
    (torch.Size([2, 7, 5]), torch.Size([1, 2, 5]))
    """

    kind = cells.LSTM


class PeepholeLSTM(_Named):
    """``c = sigma(u_f)*c + sigma(u_i)*tanh(u_g)``, every gate reads **c**; out is ``sigma(u_o)*tanh(c)``, state is c.

    Source: Gilboa et al. 2019 Table 1.

    >>> out, c = PeepholeLSTM(3, 5)(torch.ones(7, 2, 3))
    >>> bool((out[-1] == c[0]).any())
    False
    """

    kind = cells.Peephole


class TRNN(_Named):
    """``f = sigma(u_f)``, ``h = f*h + (1-f)*u_z``; no recurrent matrices. Source: Balduzzi & Ghifary 2016, eqs. 15-17.

    >>> TRNN(3, 5).weight_hh_l0 is None
    True
    """

    kind = cells.TRNN


class TLSTM(_Named):
    """``f = sigma(u_f)``, ``c = f*c + (1-f)*u_z``, out is ``c*tanh(u_o)``; gates read x_t and x_(t-1).

    Source: Balduzzi & Ghifary 2016, eqs. 25-29.

    >>> TLSTM(3, 5).weight_ph_l0.shape
    torch.Size([15, 3])
    """

    kind = cells.TLSTM


class TGRU(_Named):
    """``h = sigma(u_f)*h + u_z*tanh(u_o)``; gates read x_t and x_(t-1). Source: Balduzzi & Ghifary 2016, eqs. 37-40.

    >>> layer, x = TGRU(3, 5), torch.ones(7, 2, 3)
    >>> whole, _ = layer(x)
    >>> first, state = layer(x[:4])
    >>> rest, _ = layer(x[4:], state, previous=x[3])
    >>> torch.allclose(torch.cat([first, rest]), whole)
    True
    """

    kind = cells.TGRU
