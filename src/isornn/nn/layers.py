"""A layer for each of the nine cells: ``LSTM(input_size, hidden_size)`` is ``RNN(cells.LSTM(), ...)``.

Equations are in the cell definitions' names: ``u_k = W_k r + U_k x_t + V_k x_(t-1) + b_k`` with r the state unless said
otherwise, sigma the logistic function (option ``gate="hard_sigmoid"``), * pointwise, x_0 = 0 unless given.
Shapes, parameters and errors are those of `RNN`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from isornn import cells
from isornn.nn.rnn import RNN, Before, Features

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
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        features: Features | None = None,
        before: Before = "zero",
        h_detach: float = 0.0,
        checkpoint_every: int | None = None,
        untied_steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            cells.with_options(self.kind, options),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
            features=features,
            before=before,
            h_detach=h_detach,
            checkpoint_every=checkpoint_every,
            untied_steps=untied_steps,
        )


class VanillaRNN(_Named):
    """``h = tanh(u_h)``; option ``nonlinearity``: tanh, sigmoid, relu, identity. Source: Gilboa et al. 2019 Table 1.

    >>> out, h = VanillaRNN(3, 5, nonlinearity="relu")(torch.zeros(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    kind = cells.Vanilla


class MinimalRNN(_Named):
    """``f = sigma(u_u)``, ``h = f*h + (1-f)*z``, ``z = Phi(x)``: x itself where input_size is hidden_size, else linear.

    Source: Chen, Pennington, Schoenholz 2018, eqs. 16-18; Phi as `RNN`'s ``features``.

    >>> MinimalRNN(3, 5, features="tanh").weight_phi_l0.shape, MinimalRNN(5, 5).weight_ih_l0.shape
    (torch.Size([5, 3]), torch.Size([5, 5]))
    """

    kind = cells.Minimal


class GRU(_Named):
    """``z, r = sigma(u_z), sigma(u_r)``, ``h = z*h + (1-z)*tanh(u_nx + r*u_nh)``: torch.nn.GRU's cell.

    nx reads the input only, nh the state only: gates are stacked r, z, nx in ``weight_ih_l0`` and ``bias_ih_l0``, r, z,
    nh in the other two, as torch has them, so that state dicts go both ways.

    >>> theirs = torch.nn.GRU(3, 5, num_layers=2)
    >>> GRU(3, 5, num_layers=2).load_state_dict(theirs.state_dict())
    <All keys matched successfully>
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

    State dicts go both ways, those with ``proj_size`` too.

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

    >>> [name for name, _ in TRNN(3, 5).named_parameters()]
    ['weight_ih_l0', 'bias_ih_l0']
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
