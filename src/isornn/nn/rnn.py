"""The torch layer of any cell: it owns time, the cell owns one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isornn.cells import Cell, Values
from isornn.nn.step import gates_on_plain_state, step

State = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class GateParameters:
    """One gate's part of a layer's parameters, as views: writing to them under ``no_grad`` writes to the layer.

    Shapes: weight_hh (N, N), weight_ih (N, D), weight_ph (N, D), bias (N,), each behind a leading axis of steps
    where the layer is untied; ``None`` where the gate does not read that or the layer has no bias.
    """

    weight_hh: Tensor | None
    weight_ih: Tensor | None
    weight_ph: Tensor | None
    bias: Tensor | None


class RNN(nn.Module):
    """Any cell as a layer, called as torch.nn.RNN is: ``out, state = layer(x, state)``.

    ``u_k = W_k r_k + U_k x_t + V_k x_(t-1) + b_k`` for every gate k of the cell, then the cell's update. Parameters
    are stacked by gate in the order of ``cell.gates``; start uniform in +-1/sqrt(N), as torch's own layers do.

    Parameters (``None`` where no gate of the cell reads that):
        weight_ih_l0 (gates that read the input * N, D): the U_k.
        weight_hh_l0 (gates that read a state * N, N): the W_k.
        weight_ph_l0 (gates that read the previous input * N, D): the V_k.
        bias_l0 (gates * N): the b_k, one for each gate.

    Args:
        cell: what one step is; a user's own cell serves as well as the library's.
        input_size: D. Where the input enters pointwise (minimalRNN) it equals hidden_size.
        hidden_size: N.
        bias: whether there is ``bias_l0``.
        batch_first: whether x and out are (B, T, .) and not (T, B, .).
        untied_steps: T: every parameter has a leading axis of T, fresh weights for each step, the papers'
            assumption. Step t of a call uses entry t; a sequence longer than T is an error.

    Raises:
        ValueError: a size is not positive, or the input enters pointwise and input_size is not hidden_size.

    >>> from isornn.cells import LSTM
    >>> layer = RNN(LSTM(), input_size=3, hidden_size=5)
    >>> out, (h, c) = layer(torch.zeros(7, 2, 3))
    >>> out.shape, h.shape, c.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]), torch.Size([1, 2, 5]))
    >>> layer.weight_hh_l0.shape
    torch.Size([20, 5])
    """

    weight_ih_l0: nn.Parameter | None
    weight_hh_l0: nn.Parameter | None
    weight_ph_l0: nn.Parameter | None
    bias_l0: nn.Parameter | None

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        batch_first: bool = False,
        untied_steps: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("untied_steps", untied_steps)):
            if size is not None and size < 1:
                raise ValueError(f"{name}: {size} is not allowed; it is a positive whole number")
        if cell.input_enters_pointwise and input_size != hidden_size:
            raise ValueError(
                f"input_size: {input_size} is not allowed; the input of {cell.name} enters pointwise, so it equals "
                f"hidden_size, {hidden_size}: map the input to that size first"
            )
        self.cell, self.input_size, self.hidden_size = cell, input_size, hidden_size
        self.bias, self.batch_first, self.untied_steps = bias, batch_first, untied_steps
        steps = () if untied_steps is None else (untied_steps,)
        for name, gates in self._stacks().items():
            shape = (*steps, len(gates) * hidden_size, *self._columns(name))
            empty = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if gates else None
            self.register_parameter(name, empty)
        self._plain = gates_on_plain_state(cell)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every entry uniform in +-1/sqrt(N), torch's default: weight_var = 1/3, input_var = D/(3N), bias_var = 1/(3N).

        Torch's layers have two biases for each gate, so theirs comes to bias_var = 2/(3N).
        """
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def _stacks(self) -> dict[str, tuple[str, ...]]:
        """Which gates each parameter holds, in their order."""
        gates = self.cell.gates
        return {
            "weight_ih_l0": tuple(name for name, reads in gates.items() if reads.input),
            "weight_hh_l0": tuple(name for name, reads in gates.items() if reads.state),
            "weight_ph_l0": tuple(name for name, reads in gates.items() if reads.previous_input),
            "bias_l0": tuple(gates) if self.bias else (),
        }

    def _columns(self, parameter: str) -> tuple[int, ...]:
        return {"bias_l0": (), "weight_hh_l0": (self.hidden_size,)}.get(parameter, (self.input_size,))

    def gate_slice(self, parameter: str, gate: str) -> slice | None:
        """The rows of ``parameter`` (``"weight_hh_l0"``, ...) that belong to ``gate``; ``None`` where it has none.

        Raises:
            ValueError: the cell has no such gate, the layer no such parameter.

        >>> from isornn.cells import GRU
        >>> RNN(GRU(), 3, 5).gate_slice("weight_hh_l0", "nh")
        slice(10, 15, None)
        """
        stacks = self._stacks()
        if gate not in self.cell.gates:
            raise ValueError(f"gate: {gate!r} is not allowed; {self.cell.name} has {', '.join(self.cell.gates)}")
        if parameter not in stacks:
            raise ValueError(f"parameter: {parameter!r} is not allowed; it is one of {', '.join(stacks)}")
        if gate not in stacks[parameter]:
            return None
        start = stacks[parameter].index(gate) * self.hidden_size
        return slice(start, start + self.hidden_size)

    def _part(self, parameter: str, gate: str) -> Tensor | None:
        whole, rows = getattr(self, parameter), self.gate_slice(parameter, gate)
        if whole is None or rows is None:
            return None
        return whole[(slice(None),) * (self.untied_steps is not None) + (rows,)]

    def gate_parameters(self, gate: str) -> GateParameters:
        """The gate's matrices and bias, as views of the parameters.

        Raises:
            ValueError: the cell has no such gate.

        >>> from isornn.cells import LSTM
        >>> layer = RNN(LSTM(), 3, 5)
        >>> with torch.no_grad():
        ...     _ = layer.gate_parameters("f").bias.fill_(1.0)
        >>> layer.bias_l0.data[5:10]
        tensor([1., 1., 1., 1., 1.])
        """
        return GateParameters(
            weight_hh=self._part("weight_hh_l0", gate),
            weight_ih=self._part("weight_ih_l0", gate),
            weight_ph=self._part("weight_ph_l0", gate),
            bias=self._part("bias_l0", gate),
        )

    def forward(self, x: Tensor, state: State | None = None, previous: Tensor | None = None) -> tuple[Tensor, State]:
        """Run over a sequence.

        Args:
            x: (T, B, D), (B, T, D) with batch_first, or (T, D) for one sequence.
            state: (1, B, N), or (1, N) for one sequence; a tuple of these in the order of ``cell.states`` where
                the cell has several. 0 where not given.
            previous: x_0, the input before the first, (B, D) or (D,), for cells that read x_(t-1); 0 where not
                given. A sequence run in chunks needs the last input of the chunk before as well as its state.

        Returns:
            The outputs, shaped as x is with N for D, and the last state, in the form of ``state``.

        Raises:
            ValueError: a shape, the number of states, or a sequence longer than ``untied_steps``.
        """
        if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
            raise ValueError(f"x: shape {tuple(x.shape)} is not allowed; it is (steps, batch, {self.input_size})")
        batched = x.dim() == 3
        x = x.unsqueeze(1) if not batched else x.transpose(0, 1) if self.batch_first else x
        self._check_length(len(x))
        states = self._initial(x, state, batched)
        drive = self._drive(x, self._previous(x, previous, batched))
        outputs = []
        for t, weights in enumerate(self._recurrent(len(x))):
            now = {gate: value[t] for gate, value in drive.items()}
            states, u = step(
                self.cell,
                states,
                now,
                _Products(weights, getattr(states, self.cell.states[0]), self._plain),
                x[t] if self.cell.input_enters_pointwise else None,
            )
            outputs.append(self.cell.output(states, u))
        out = torch.stack(outputs)
        last = [getattr(states, name) for name in self.cell.states]
        if not batched:
            out = out.squeeze(1)
        elif self.batch_first:
            out = out.transpose(0, 1)
        final = tuple(value.unsqueeze(0) if batched else value for value in last)
        return out, final if len(final) > 1 else final[0]

    def _check_length(self, length: int) -> None:
        if length < 1:
            raise ValueError("x: an empty sequence is not allowed; it has at least one step")
        if self.untied_steps is not None and length > self.untied_steps:
            raise ValueError(
                f"x: {length} steps are not allowed; the layer has weights for untied_steps = {self.untied_steps}"
            )

    def _initial(self, x: Tensor, state: State | None, batched: bool) -> Values:
        names, batch = self.cell.states, x.shape[1]
        if state is None:
            return Values(**{name: x.new_zeros(batch, self.hidden_size) for name in names})
        given = (state,) if isinstance(state, Tensor) else tuple(state)
        if len(given) != len(names):
            raise ValueError(f"state: {len(given)} tensors are not allowed; {self.cell.name} has {', '.join(names)}")
        shape = (1, batch, self.hidden_size) if batched else (1, self.hidden_size)
        for name, value in zip(names, given, strict=True):
            if value.shape != shape:
                raise ValueError(f"state.{name}: shape {tuple(value.shape)} is not allowed; it is {shape}")
        return Values(**{name: value.reshape(batch, -1) for name, value in zip(names, given, strict=True)})

    def _previous(self, x: Tensor, previous: Tensor | None, batched: bool) -> Tensor | None:
        """x_(t-1) for every step, or ``None`` where no gate reads it."""
        if self.weight_ph_l0 is None:
            if previous is not None:
                raise ValueError(f"previous: {self.cell.name} reads no previous input")
            return None
        shape = x.shape[1:] if batched else x.shape[2:]
        if previous is None:
            previous = x.new_zeros(shape)
        if previous.shape != shape:
            raise ValueError(f"previous: shape {tuple(previous.shape)} is not allowed; it is {tuple(shape)}")
        return torch.cat([previous.reshape(1, *x.shape[1:]), x[:-1]])

    def _drive(self, x: Tensor, previous: Tensor | None) -> dict[str, Tensor]:
        """Everything in the pre-activations but the recurrent product, for all steps at once, (T, B, N) by gate."""
        products = {"weight_ih_l0": _times(x, self.weight_ih_l0), "weight_ph_l0": _times(previous, self.weight_ph_l0)}
        drive = {}
        for gate in self.cell.gates:
            total = x.new_zeros(*x.shape[:2], self.hidden_size)
            for parameter, product in products.items():
                rows = self.gate_slice(parameter, gate)
                if product is not None and rows is not None:
                    total = total + product[..., rows]
            bias = self._part("bias_l0", gate)
            if bias is not None:
                total = total + (bias if self.untied_steps is None else bias[: len(x), None])
            drive[gate] = total
        return drive

    def _recurrent(self, length: int) -> list[Mapping[str, Tensor]]:
        """For each step, the recurrent matrix of each gated reading and, under ``""``, the rest in one."""
        parts = {gate: part for gate in self.cell.gates if (part := self._part("weight_hh_l0", gate)) is not None}
        weights = {gate: part for gate, part in parts.items() if gate not in self._plain}
        if self._plain:
            weights[""] = torch.cat([parts[gate] for gate in self._plain], dim=-2)
        if self.untied_steps is None:
            return [weights] * length
        return [{name: value[t] for name, value in weights.items()} for t in range(length)]

    def extra_repr(self) -> str:
        shown = f"{self.cell}, {self.input_size}, {self.hidden_size}"
        for name, usual in (("bias", True), ("batch_first", False), ("untied_steps", None)):
            if getattr(self, name) != usual:
                shown += f", {name}={getattr(self, name)}"
        return shown


class _Products:
    """``W_k r`` for the gates of one step; those that read the first state itself share one product."""

    def __init__(self, weights: Mapping[str, Tensor], first: Tensor, plain: tuple[str, ...]) -> None:
        self.weights = weights
        self.shared: dict[str, Tensor] = {}
        if plain:
            product = nn.functional.linear(first, weights[""])
            self.shared = dict(zip(plain, product.chunk(len(plain), dim=-1), strict=True))

    def __call__(self, gate: str, r: Tensor) -> Tensor:
        return self.shared[gate] if gate in self.shared else nn.functional.linear(r, self.weights[gate])


def _times(x: Tensor | None, weight: Tensor | None) -> Tensor | None:
    """x_t W^T for all steps; each with its own matrix where ``weight`` has an axis of steps."""
    if x is None or weight is None:
        return None
    if weight.dim() == 2:
        return nn.functional.linear(x, weight)
    return x @ weight[: len(x)].transpose(1, 2)
