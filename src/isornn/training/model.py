"""A recurrent module between what goes in, numbers or symbols, and a linear readout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from isornn.tasks import Task


class SequenceModel(nn.Module):
    """``y = A h_T + a``, or ``y_t = A h_t + a`` for every step; of two directions, h has the last of each.

    Args:
        recurrent: any module with torch.nn.LSTM's call and its ``hidden_size``, steps first, in one direction or two.
        outputs: how many numbers y has: logits, or values.
        encoder: what x goes through first; x itself where it is ``None``.
        every_step: whether each step has an output.
        carries: whether the state goes on from one call to the next, without its gradient, until `forget`.

    >>> SequenceModel(nn.GRU(3, 8), 10)(torch.zeros(5, 2, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        recurrent: nn.Module,
        outputs: int,
        *,
        encoder: nn.Module | None = None,
        every_step: bool = False,
        carries: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = nn.Identity() if encoder is None else encoder
        self.recurrent = recurrent
        self.bidirectional = bool(getattr(recurrent, "bidirectional", False))
        hidden = int(recurrent.hidden_size) * (1 + self.bidirectional)  # type: ignore[arg-type]
        self.readout = nn.Linear(hidden, outputs)
        self.every_step, self.carries = every_step, carries
        self.carried: Any = None

    @staticmethod
    def of(task: Task, recurrent: nn.Module, embedding: int | None = None) -> SequenceModel:
        """The model that a task wants around ``recurrent``; symbols are one-hot, or embedded in so many dimensions."""
        encoder = None
        if task.symbolic:
            encoder = OneHot(task.inputs) if embedding is None else nn.Embedding(task.inputs, embedding)
        return SequenceModel(
            recurrent, task.outputs, encoder=encoder, every_step=task.per_step, carries=task.columns is not None
        )

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """y (B, outputs), at each sequence's own last step where ``lengths`` are given, or (T, B, outputs).

        Args:
            x: (T, B, D), or (T, B) of symbols.
            lengths: (B,); what x holds behind them changes nothing before them.
        """
        out, state = self._run(self.encoder(x), lengths)
        if self.carries:
            self.carried = _detached(state)
        return self.readout(out if self.every_step else self._ends(out, lengths))

    def _run(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Any]:
        if lengths is None or not self.bidirectional:  # in one direction what follows a sequence changes nothing in it
            out, state = self.recurrent(x, self.carried)
            return out, state
        packed, state = self.recurrent(pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False), self.carried)
        return pad_packed_sequence(packed, total_length=len(x))[0], state

    def _ends(self, out: Tensor, lengths: Tensor | None) -> Tensor:
        """The outputs of each sequence's last step, and of its first in the other direction."""
        last = out[-1] if lengths is None else out[lengths - 1, torch.arange(len(lengths), device=out.device)]
        if not self.bidirectional:
            return last
        hidden = out.shape[-1] // 2
        return torch.cat([last[:, :hidden], out[0, :, hidden:]], -1)

    def forget(self) -> None:
        """Begin the next call with the state 0."""
        self.carried = None


class OneHot(nn.Module):
    """Symbols as unit vectors: int64 (...) to (..., K).

    >>> OneHot(3)(torch.tensor([2, 0])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.symbols = symbols
        # The module's precision, as a converted module has it.
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.one_hot(x, self.symbols).to(self.one.dtype)  # type: ignore[arg-type]


def _detached(state: Any) -> Any:
    return state.detach() if isinstance(state, Tensor) else tuple(part.detach() for part in state)
