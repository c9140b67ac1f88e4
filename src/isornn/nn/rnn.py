"""The torch layer of any cell: it owns time, depth and direction, the cell owns one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing
from torch.nn.utils.rnn import PackedSequence

from isornn.cells import Cell, drawn_parameters
from isornn.cells.definition import check_definition
from isornn.nn.autocast import autocast_dtype
from isornn.nn.kernels import kernel_of
from isornn.nn.layout import GateTensors, Layout
from isornn.nn.options import Before, Features, check_options
from isornn.nn.segments import Segments
from isornn.nn.sequences import Sequences, check_dense
from isornn.nn.stepped import Weights
from isornn.nn.untied import ShuffledUnits, shuffled_matrices
from isornn.warn import warn

State = Tensor | tuple[Tensor, ...]


class RNN(nn.Module):
    """Any cell as a layer, called as torch.nn's are: ``output, hx = layer(input, hx)``.

    ``u_k = W_k r_k + U_k x_t + V_k x_(t-1) + b_k`` for every gate k of the cell, then the cell's update. Parameters
    have torch's names and are stacked by gate in the order of ``cell.gates``, for each layer l and, with the suffix
    ``_reverse``, for the other direction; they start uniform in +-1/sqrt(N), as torch's do.

    Parameters, absent where no gate of the cell reads that (D is N, or 2N, in deeper layers):

    - ``weight_ih_l0`` (gates that read the input * N, D): the U_k.
    - ``weight_hh_l0`` (gates that read the state * N, N): the W_k.
    - ``bias_ih_l0`` (all gates but those that read the state alone * N), ``bias_hh_l0`` (gates that read the state *
      N): b_k is their sum.
    - ``weight_ph_l0`` (gates that read the previous input * N, D): the V_k.
    - ``weight_hr_l0`` (proj_size, N): the projection of the state.
    - ``weight_phi_l0`` (N, D), ``bias_phi_l0`` (N): the feature map of a cell whose input enters pointwise
      (minimalRNN).
    - those of the cell itself, (N) each, by their names.

    Args:
        cell: what one step is; a user's own cell serves as well as the library's.
        input_size: D.
        hidden_size: N.
        num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as torch.nn.LSTM has them.
        proj_size: P > 0: the state that gates read and that is returned is ``W_hr h``, with P units.
        features: for a cell whose input enters pointwise, Phi(x) = ``W_phi x + b_phi`` (``"linear"``) or its tanh takes
            the input's place; by default linear in layers where D is not N, and the input itself where it is.
        before: x_(t-1) at the first step, for cells that read it: ``"zero"``, or ``"first"``: x_1 itself.
        h_detach: in training, at each step with this probability, no gradient passes from the gates to the state that
            they read (Arpit et al. 2018, for LSTM: what passes through c stays); for cells whose update does not read
            that state itself.
        checkpoint_every: k: only every k-th state is stored for the backward pass, the steps between are recomputed;
            memory grows with T/k + k.
        untied: every step of every call has different weights and biases, the papers' assumption: the parameters
            with rows, columns and signs permuted (`nn.untied`), drawn from torch's global generator, as dropout is.

    Raises:
        ValueError: a size or probability, or an option that the cell has no use for; ``cell`` is a class or a name.
        CellError: the cell's definition has a mistake.

    >>> from isornn.cells import LSTM
    >>> layer = RNN(LSTM(), input_size=3, hidden_size=5, num_layers=2, bidirectional=True)
    >>> out, (h, c) = layer(torch.zeros(7, 2, 3))
    >>> out.shape, h.shape, c.shape
    (torch.Size([7, 2, 10]), torch.Size([4, 2, 5]), torch.Size([4, 2, 5]))
    >>> layer.weight_ih_l1_reverse.shape
    torch.Size([20, 10])
    """

    def __init__(
        self,
        cell: Cell,
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
    ) -> None:
        super().__init__()
        check_definition(cell)
        self.cell, self.layout = cell, Layout.of(cell)
        kernel_of(cell)  # now, since torch.compile could not look it up
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.proj_size, self.features, self.before = dropout, proj_size, features, before
        self.h_detach, self.checkpoint_every, self.untied = h_detach, checkpoint_every, untied
        check_options(self)
        for layer, direction in self.places():
            for name, shape in self._shapes(layer).items():
                empty = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(name + suffix(layer, direction), empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every entry uniform in +-1/sqrt(N), torch's default: weight_var = 1/3, input_var = D/(3N).

        bias_var is 2/(3N) where a gate reads input and state, so has two biases, else 1/(3N).
        The cell's own parameters get the values that it states, or a draw of the law that it states.
        """
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters():
            if name.rpartition("_l")[0] not in self.cell.parameters:
                nn.init.uniform_(parameter, -bound, bound)
        for place in self.places():
            for name, start in drawn_parameters(self.cell, self.hidden_size).items():
                with torch.no_grad():
                    getattr(self, name + suffix(*place)).copy_(start)

    def flatten_parameters(self) -> None:
        """Nothing to do; torch's layers have it."""

    @property
    def mode(self) -> str:
        """torch.nn's name of the equations: LSTM, GRU, RNN_TANH or RNN_RELU; the cell's own where torch has none."""
        return self.layout.mode or self.cell.name

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of every layer and direction, in torch's order.

        >>> from isornn.cells import LSTM
        >>> [[tuple(weight.shape) for weight in place] for place in RNN(LSTM(), 3, 5).all_weights]
        [[(20, 3), (20, 5), (20,), (20,)]]
        """
        return [[getattr(self, name + suffix(*place)) for name in self._shapes(place[0])] for place in self.places()]

    def _leave_in_floating_point(self, qconfig: object) -> None:
        if qconfig is not None:
            kind = type(self).__name__
            warn(
                f"torch.ao.quantization: isornn.nn.{kind} stays in floating point, it has no quantised form; where "
                "torch.nn has the layer, load the state dict into that and quantise it",
            )

    # What torch.ao.quantization marks modules with. It would pass this one over in silence.
    qconfig = property(fset=_leave_in_floating_point)

    @property
    def output_size(self) -> int:
        """Features of what one layer gives out: N or proj_size, twice that with two directions."""
        return self._state_size * (1 + self.bidirectional)

    @property
    def _state_size(self) -> int:
        return self.proj_size or self.hidden_size

    def places(self) -> Iterator[tuple[int, int]]:
        """Every layer and direction, from 0, in the order of the state's first axis."""
        return ((layer, direction) for layer in range(self.num_layers) for direction in range(1 + self.bidirectional))

    def _inputs(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.output_size

    def _maps_features(self, layer: int) -> bool:
        return self.cell.input_enters_pointwise and (
            self.features is not None or self._inputs(layer) != self.hidden_size
        )

    def _shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's parameters, in torch's order: equal seeds then give torch's own start."""
        maps = self._maps_features(layer)
        columns = self.hidden_size if maps else self._inputs(layer)
        widths = {"weight_ih": (columns,), "weight_hh": (self._state_size,), "weight_ph": (columns,)}
        order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_ph")
        shapes = {
            name: (len(self.layout.stacks[name]) * self.hidden_size, *widths.get(name, ()))
            for name in order
            if self.layout.stacks[name] and (self.bias or name in widths)
        }
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        if maps:
            shapes["weight_phi"] = (self.hidden_size, self._inputs(layer))
            shapes |= {"bias_phi": (self.hidden_size,)} if self.bias else {}
        return shapes | dict.fromkeys(self.cell.parameters, (self.hidden_size,))

    def gate_slice(self, parameter: str, gate: str) -> slice | None:
        """The rows of ``parameter`` (``"weight_hh"``, ...) that belong to ``gate``; ``None`` where it has none.

        Raises:
            ValueError: the cell has no such gate, the layer no such parameter.

        >>> from isornn.cells import GRU
        >>> RNN(GRU(), 3, 5).gate_slice("weight_hh", "nh")
        slice(10, 15, None)
        """
        self._check_gate(gate)
        if parameter not in self.layout.stacks:
            allowed = ", ".join(self.layout.stacks)
            raise ValueError(f"parameter: {parameter!r} is not allowed; it must be one of {allowed}")
        return self.layout.rows(parameter, gate, self.hidden_size)

    def gate_parameters(self, gate: str, layer: int = 0, direction: int = 0) -> GateTensors:
        """The gate's matrices and biases, as views of the parameters.

        Raises:
            ValueError: the cell has no such gate, the module no such layer and direction.

        >>> from isornn.cells import LSTM
        >>> layer = RNN(LSTM(), 3, 5)
        >>> with torch.no_grad():
        ...     _ = layer.gate_parameters("f").biases[0].fill_(1.0)
        >>> layer.bias_ih_l0.data[5:10]
        tensor([1., 1., 1., 1., 1.])
        """
        self._check_gate(gate)
        if (layer, direction) not in self.places():
            raise ValueError(f"layer, direction: {layer}, {direction} is not allowed; {self._shape_in_words()}")
        parts = {name: self._part(name, gate, suffix(layer, direction)) for name in self.layout.stacks}
        biases = tuple(part for name in ("bias_ih", "bias_hh") if (part := parts[name]) is not None)
        return GateTensors(parts["weight_hh"], parts["weight_ih"], parts["weight_ph"], biases)

    def _part(self, parameter: str, gate: str, place: str) -> Tensor | None:
        whole, rows = getattr(self, parameter + place, None), self.layout.rows(parameter, gate, self.hidden_size)
        if whole is None or rows is None:
            return None
        part: Tensor = whole[rows]
        return part

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kernel_of(self.cell)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        previous: Tensor | None = None,
    ) -> tuple[Any, State]:
        """Run over sequences.

        Args:
            input: (T, B, D), (B, T, D) with batch_first, (T, D) for one sequence, or a PackedSequence.
            hx: the state before the first step, (layers * directions, B, N), or (layers * directions, N) for one
                sequence; a tuple of these in the order of ``cell.states`` where the cell has several. 0 if not given.
            lengths: (B,): how many steps each sequence has; values of input behind them are ignored. Outputs
                there are 0, the last state is that of the sequence's own last step, or the first where it has none.
            previous: x_0, the input before the first, (B, D) or (D,), for cells that read x_(t-1), with one layer and
                direction; by default as ``before`` says. A sequence run in chunks needs the last input of the chunk
                before as well as its state.

        Returns:
            The outputs, in the form of input with N for D (2N with two directions), and the last state, in the form of
            ``hx``.

        Raises:
            ValueError: a shape, lengths, the number of states, or a dtype or device that is not the layer's.
        """
        return self._over_time(input, hx, lengths, previous)

    def _over_time(
        self,
        input: Tensor | PackedSequence,
        hx: State | None,
        lengths: Tensor | Sequence[int] | None,
        previous: Tensor | None,
    ) -> tuple[Any, State]:
        """`forward`, which a subclass may define anew and call: a recorder of calls takes the place of this one."""
        sequences = Sequences.of(input, lengths, self.batch_first, self.input_size)
        initial = self._initial(sequences, hx)
        first = self._first_previous(sequences, previous)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(1 + self.bidirectional):
                out, end = self._run(layer, direction, sequences, initial[len(last)], first)
                outputs.append(out)
                last.append(end)
            values = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if layer + 1 < self.num_layers:
                values = nn.functional.dropout(values, self.dropout, self.training)
            sequences = sequences.with_values(values)
        final = tuple(torch.stack(values) for values in zip(*last, strict=True))
        final = final if sequences.batched else tuple(value.squeeze(1) for value in final)
        # As in torch.nn, gradients of the last state do not pass through the tensor that is handed out. Of a compiled
        # program's output that is a view torch does not see that it was changed in place.
        values = sequences.values
        handed_out = values.clone() if torch.compiler.is_compiling() else values.view_as(values)
        whole = sequences.given_back(sequences.ended(handed_out))
        return whole, final if len(final) > 1 else final[0]

    def _run(
        self,
        layer: int,
        direction: int,
        sequences: Sequences,
        initial: tuple[Tensor, ...],
        previous: Tensor | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (T, B, N) of one layer and direction, and its last states."""
        place = suffix(layer, direction)
        values = sequences.values
        precision = autocast_dtype(values.device.type)
        weights = self._weights(place, values.shape[0], precision)
        x = _cast(sequences.reversed(values) if direction else values, precision)
        started = tuple(_cast(value, precision) for value in initial)
        self._check_alike(weights, x, started)
        if previous is not None:
            previous = self._with_features(previous.to(x.dtype), layer, place)
        x = self._with_features(x, layer, place)
        inputs = self._with_previous(x, previous) if self.layout.stacks["weight_ph"] else x
        pointwise = x if self.cell.input_enters_pointwise else None
        segments = Segments(self.cell, self.layout, weights, self.checkpoint_every)
        detached = self._detached(inputs)
        out, last = segments.run(inputs, pointwise, started, sequences.lengths, detached)
        return (sequences.reversed(out) if direction else out), last

    def _detached(self, inputs: Tensor) -> list[int]:
        """The steps at which no gradient passes from the gates to the state."""
        if not (self.h_detach and self.training):
            return []
        return (torch.rand(inputs.shape[0], device=inputs.device) < self.h_detach).nonzero().flatten().tolist()

    def _weights(self, place: str, steps: int, precision: torch.dtype | None) -> Weights:
        """What ``steps`` steps compute with, under autocast in its ``precision``."""
        hidden = self.hidden_size
        stacks: dict[str, Tensor] = {}
        for name in self.layout.stacks:
            stack = self._tensor(name, place)
            if stack is not None:
                stacks[name] = stack
        if self.untied:
            shuffled = ShuffledUnits(next(iter(stacks.values())), hidden, steps)
            stacks = {
                name: shuffled(stack) if stack.dim() == 1 else shuffled_matrices(stack, hidden, steps)
                for name, stack in stacks.items()
            }
        bias, offset = self.layout.biases(stacks.get("bias_ih"), stacks.get("bias_hh"), hidden)
        return Weights(
            matrix=_cast(self.layout.matrix(stacks.get("weight_ih"), stacks.get("weight_ph"), hidden), precision),
            bias=_cast(bias, precision),
            recurrent=_cast(stacks.get("weight_hh"), precision),
            offset=_cast(offset, precision),
            projection=_cast(self._tensor("weight_hr", place), precision),
            units={name: _cast(self._tensor(name, place), precision) for name in self.cell.parameters},
        )

    def _tensor(self, name: str, place: str) -> Tensor | None:
        # Not from the module's table of parameters, where one that is parametrised (orthogonal, weight norm) is not.
        return getattr(self, name + place, None)

    def _with_features(self, x: Tensor, layer: int, place: str) -> Tensor:
        """Phi(x) where the input enters pointwise and is mapped. Source: Chen et al. 2018, ``z = Phi(x)``."""
        if not self._maps_features(layer):
            return x
        weight, bias = getattr(self, "weight_phi" + place), self._tensor("bias_phi", place)
        # In x's precision, which autocast has set: an exported program may be run without it.
        mapped = nn.functional.linear(x, _cast(weight, x.dtype), _cast(bias, x.dtype))
        return torch.tanh(mapped) if self.features == "tanh" else mapped

    def _with_previous(self, x: Tensor, previous: Tensor | None) -> Tensor:
        """(T, B, 2 D): x_t and x_(t-1) concatenated."""
        if previous is None:
            previous = x[0] if self.before == "first" else torch.zeros_like(x[0])
        shifted = torch.cat([previous.to(x.dtype).reshape(1, *x.shape[1:]), x])[:-1]
        return torch.cat([x, shifted], -1)

    def _first_previous(self, sequences: Sequences, previous: Tensor | None) -> Tensor | None:
        """The argument ``previous`` if it fits."""
        if previous is None:
            return None
        if not self.layout.stacks["weight_ph"]:
            raise ValueError(f"previous: {self.cell.name} reads no previous input")
        if self.num_layers * (1 + self.bidirectional) > 1:
            raise ValueError(f"previous: only with one layer and direction; {self._shape_in_words()}")
        shape = sequences.values.shape[1:] if sequences.batched else sequences.values.shape[2:]
        if not isinstance(previous, Tensor):
            raise ValueError(f"previous: {type(previous).__name__} is not allowed; it must be a tensor")
        values = sequences.values
        if previous.dtype != values.dtype and autocast_dtype(values.device.type) is None:
            raise ValueError(f"previous: {previous.dtype} is not allowed; the input is {values.dtype}")
        check_dense("previous", previous)
        if previous.shape != shape:
            raise ValueError(f"previous: shape {tuple(previous.shape)} is not allowed; it must be {tuple(shape)}")
        return previous

    def _initial(self, sequences: Sequences, hx: State | None) -> list[tuple[Tensor, ...]]:
        """States by layer and direction, (B, .) each, in the order of the sequences as they are padded."""
        names, batch = self.cell.states, sequences.values.shape[1]
        places = self.num_layers * (1 + self.bidirectional)
        sizes = [self._state_size, *(self.hidden_size for _ in names[1:])]
        if hx is None:
            zeros = [sequences.values.new_zeros(batch, size) for size in sizes]
            return [tuple(zeros)] * places
        given = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        wrong = [type(value).__name__ for value in given if not isinstance(value, Tensor)]
        if wrong:
            raise ValueError(f"hx: {wrong[0]} is not allowed; it must be a tensor for each of {', '.join(names)}")
        if len(given) != len(names):
            raise ValueError(f"hx: {len(given)} tensors are not allowed; {self.cell.name} has {', '.join(names)}")
        for name, size, value in zip(names, sizes, given, strict=True):
            check_dense(f"hx.{name}", value)
            shape = (places, batch, size) if sequences.batched else (places, size)
            if not is_tracing() and value.shape != shape:
                raise ValueError(f"hx.{name}: shape {tuple(value.shape)} is not allowed; it must be {shape}")
        by_place = [value.reshape(places, batch, value.shape[-1]).unbind(0) for value in given]
        return list(zip(*by_place, strict=True))

    def _check_alike(self, weights: Weights, x: Tensor, initial: tuple[Tensor, ...]) -> None:
        """Refuse tensors of another dtype or device than the layer's: kernels would misread their memory."""
        expected = weights.matrix
        states = {f"hx.{name}": value for name, value in zip(self.cell.states, initial, strict=True)}
        for name, value in {"input": x, **states, **weights.named()}.items():
            if value.dtype != expected.dtype:
                raise ValueError(f"{name}: {value.dtype} is not allowed; the layer is {expected.dtype}")
            if value.device != expected.device:
                raise ValueError(f"{name}: device {value.device} is not allowed; the layer is on {expected.device}")

    def gate_inputs(self, x: Tensor, layer: int = 0, direction: int = 0, previous: Tensor | None = None) -> Tensor:
        """(T, B, .): what the input matrices of a layer and direction multiply.

        The layer's inputs x (T, B, D) themselves; their features where it computes some, in its own dtype; with
        x_(t-1) concatenated where a gate reads that (``previous`` is x_0).
        """
        if self._maps_features(layer):
            dtype, place = next(self.parameters()).dtype, suffix(layer, direction)
            if previous is not None:
                previous = self._with_features(previous.to(dtype), layer, place)
            x = self._with_features(x.to(dtype), layer, place)
        return self._with_previous(x, previous) if self.layout.stacks["weight_ph"] else x

    def _check_gate(self, gate: str) -> None:
        if gate not in self.cell.gates:
            raise ValueError(f"gate: {gate!r} is not allowed; {self.cell.name} has {', '.join(self.cell.gates)}")

    def _shape_in_words(self) -> str:
        directions = "two directions" if self.bidirectional else "one direction"
        return f"the module has {self.num_layers} layer(s), {directions}"

    def extra_repr(self) -> str:
        shown = f"{self.cell}, {self.input_size}, {self.hidden_size}"
        usual: Mapping[str, Any] = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "proj_size": 0,
            "features": None,
            "before": "zero",
            "h_detach": 0.0,
            "checkpoint_every": None,
            "untied": False,
        }
        return shown + "".join(f", {k}={getattr(self, k)}" for k, v in usual.items() if getattr(self, k) != v)


def suffix(layer: int, direction: int) -> str:
    """What the names of a place's parameters end in.

    >>> suffix(1, 1)
    '_l1_reverse'
    """
    return f"_l{layer}" + ("_reverse" if direction else "")


def _cast(tensor: Any, precision: torch.dtype | None) -> Any:
    """``tensor`` in the precision that autocast asks for, of all but float64 as in torch's operations."""
    if precision is None or tensor is None or not tensor.is_floating_point():
        return tensor
    if tensor.dtype in (torch.float64, precision):  # an exported program would record a cast to what it is already
        return tensor
    return tensor.to(precision)
