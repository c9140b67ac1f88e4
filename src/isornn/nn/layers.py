"""A layer for each of the library's cells: ``LSTM(input_size, hidden_size)`` is ``RNN(cells.LSTM(), ...)``.

Equations are in the cell definitions' names: ``u_k = W_k r + U_k x_t + V_k x_(t-1) + b_k`` with r the state unless said
otherwise, sigma the logistic function (option ``gate="hard_sigmoid"``), * pointwise, x_0 = 0 unless given.
Shapes, parameters and errors are those of `RNN`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from isornn import cells
from isornn.cells.catalogue import option_names
from isornn.nn import typed
from isornn.nn.options import Before, Features
from isornn.nn.rnn import RNN, State


class _Named(RNN):
    """An `RNN` of one kind of cell; what is not the layer's is the cell's option.

    Raises:
        OptionError: no such argument of the layer or option of the cell; an option's value is not one of those allowed.
        ValueError: as `RNN`.

    >>> LSTM(3, 5, gates="hard_sigmoid")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.OptionError: options.gates: 'hard_sigmoid' is not allowed; LSTM takes input_size,
    hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype, features, before,
    h_detach, checkpoint_every, untied, and the cell's options: gate
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
        untied: bool = False,
        **options: Any,
    ) -> None:
        self._check_names(options)
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
            untied=untied,
        )

    def _check_names(self, options: Mapping[str, Any]) -> None:
        offered = option_names(self.kind)
        for name, value in options.items():
            if name not in offered:
                own = ", ".join(argument for argument in inspect.signature(_Named).parameters if argument != "options")
                allowed = f"{type(self).__name__} takes {own}, and the cell's options: {', '.join(offered) or 'none'}"
                raise cells.OptionError(f"options.{name}: {value!r} is not allowed; {allowed}")


class VanillaRNN(_Named):
    """``h = phi(u_h)``; option ``nonlinearity``: tanh, sigmoid, relu, identity, prelu, leaky_relu, modrelu, oplu.

    PReLU's ``slope_l0`` and modReLU's ``offset_l0`` are trained, one number per unit; option ``slope`` is where the
    first starts, and leaky ReLU's own. OPLU takes pairs of units. It is the fourth positional argument, as torch.nn.RNN
    has it, with bias and the others behind it.
    Sources: Gilboa et al. 2019 Table 1; Vorontsov et al. 2017.

    >>> out, h = VanillaRNN(3, 5, nonlinearity="relu")(torch.zeros(7, 2, 3))
    >>> out.shape, h.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    kind = cells.Vanilla

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, *args, nonlinearity=nonlinearity, **options)

    @property
    def nonlinearity(self) -> str:
        """phi, by name."""
        assert isinstance(self.cell, cells.Vanilla)
        return self.cell.nonlinearity


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


class GersLSTM(_Named):
    """`LSTM` whose gates also see their own unit's cell state, i and f the old, o the new, by one number per unit each.

    Those numbers, ``peep_i_l0``, ``peep_f_l0`` and ``peep_o_l0``, start at 0.
    Source: Gers, Schraudolph & Schmidhuber 2002; the LSTM of Vorontsov et al. 2017.

    >>> GersLSTM(3, 5).peep_o_l0.shape
    torch.Size([5])
    """

    kind = cells.GersLSTM


class CoupledLSTM(_Named):
    """``c = f*c + (1-f)*tanh(u_z)``, ``h = tanh(u_o)*tanh(c)``, all gates read h: no input gate, a tanh output gate.

    Source: Balduzzi & Ghifary 2016, eqs. 19-23, the LSTM that they compare with.

    >>> CoupledLSTM(3, 5).weight_hh_l0.shape
    torch.Size([15, 5])
    """

    kind = cells.CoupledLSTM


class _StronglyTyped(_Named):
    """A layer of a strongly typed cell: learnware without a state, firmware without parameters; see `nn.typed`."""

    def learn(self, x: Tensor, previous: Tensor | None = None) -> dict[str, Tensor]:
        """Features of all steps: `nn.typed.learn`.

        >>> layer, x = TRNN(3, 5), torch.ones(7, 2, 3)
        >>> torch.allclose(layer.firm(layer.learn(x))[0], layer(x)[0], atol=1e-6)
        True
        """
        return typed.learn(self, x, previous)

    def firm(self, features: Mapping[str, Tensor], state: State | None = None) -> tuple[Tensor, State]:
        """The cell's update over features, unit by unit: `nn.typed.firm`."""
        return typed.firm(self.cell, features, state)

    def pooling_weights(self, x: Tensor, previous: Tensor | None = None) -> Tensor:
        """How much each step counts in the state after the last, ``P_(x_1:t)(s)``: `nn.typed.pooling_weights`.

        >>> weights = TRNN(3, 5).pooling_weights(torch.randn(7, 2, 3))
        >>> torch.allclose(weights.sum(0), torch.ones(2, 5))
        True
        """
        return typed.pooling_weights(self, x, previous)


class TRNN(_StronglyTyped):
    """``f = sigma(u_f)``, ``h = f*h + (1-f)*u_z``; no recurrent matrices. Source: Balduzzi & Ghifary 2016, eqs. 15-17.

    >>> [name for name, _ in TRNN(3, 5).named_parameters()]
    ['weight_ih_l0', 'bias_ih_l0']
    """

    kind = cells.TRNN


class TLSTM(_StronglyTyped):
    """``f = sigma(u_f)``, ``c = f*c + (1-f)*u_z``, out is ``c*tanh(u_o)``; gates read x_t and x_(t-1).

    Source: Balduzzi & Ghifary 2016, eqs. 25-29.

    >>> TLSTM(3, 5).weight_ph_l0.shape
    torch.Size([15, 3])
    """

    kind = cells.TLSTM


class TGRU(_StronglyTyped):
    """``h = sigma(u_f)*h + u_z*tanh(u_o)``; gates read x_t and x_(t-1). Source: Balduzzi & Ghifary 2016, eqs. 37-40.

    >>> layer, x = TGRU(3, 5), torch.ones(7, 2, 3)
    >>> whole, _ = layer(x)
    >>> first, state = layer(x[:4])
    >>> rest, _ = layer(x[4:], state, previous=x[3])
    >>> torch.allclose(torch.cat([first, rest]), whole)
    True
    """

    kind = cells.TGRU


class TMR(_StronglyTyped):
    """``h = relu(scale*h + u_z)``, a trained scale per unit: strongly typed machine reasoning.

    Source: Balduzzi & Ghifary 2016, eq. 65.

    >>> [name for name, _ in TMR(3, 5).named_parameters()]
    ['weight_ih_l0', 'bias_ih_l0', 'scale_l0']
    """

    kind = cells.TMR


class SCRN(_StronglyTyped):
    """``s = alpha*s + (1-alpha)*u_z``, alpha an option: the state layer of the structurally constrained network.

    Source: Mikolov et al. 2015; Balduzzi & Ghifary 2016, eq. 14.

    >>> SCRN(3, 5, alpha=0.9).cell
    SCRN(alpha=0.9)
    """

    kind = cells.SCRN
