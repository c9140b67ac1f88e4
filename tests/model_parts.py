"""What test models are made of: modules as people write them, weights that are set by plain torch, and inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import isornn
from isornn.cells import BiasLaw, Gate, Spec
from isornn.cells.catalogue import cell_named
from isornn.diagnosis import CANNOT_TELL, Finding, findings, measure
from isornn.nn.gate_tensors import recurrent_layers


@dataclass(frozen=True)
class KnownModel:
    """A model, what it is given, how far it has to see, and what is wrong with it (``None``: nothing)."""

    name: str
    kind: str | None
    model: nn.Module
    batch: Tensor | PackedSequence
    length: int
    also: frozenset[str] = field(default_factory=frozenset)


class Reader(nn.Module):
    """A recurrent layer and a linear readout of its last output, or last states: what most people write."""

    def __init__(self, recurrent: nn.Module, features: int, classes: int = 10) -> None:
        super().__init__()
        self.recurrent, self.readout = recurrent, nn.Linear(features, classes)
        self.batch_first = bool(getattr(recurrent, "batch_first", False))

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.recurrent(x)
        if getattr(self.recurrent, "bidirectional", False):
            h = state[0] if isinstance(state, tuple) else state
            return self.readout(torch.cat([h[-2], h[-1]], -1))
        return self.readout(out[:, -1] if self.batch_first else out[-1])


class LastOutput(nn.Module):
    """The output at the last place, whatever is there."""

    def __init__(self, recurrent: nn.Module, hidden: int) -> None:
        super().__init__()
        self.recurrent, self.readout = recurrent, nn.Linear(hidden, 3)

    def forward(self, x: Tensor | PackedSequence) -> Tensor:
        out = self.recurrent(x)[0]
        if isinstance(out, PackedSequence):
            out = pad_packed_sequence(out, batch_first=True)[0]
        return self.readout(out[:, -1])


class FirstOutput(nn.Module):
    """The output at the first place, as of a transformer's token for the whole sequence."""

    def __init__(self, recurrent: nn.Module, hidden: int) -> None:
        super().__init__()
        self.recurrent, self.readout = recurrent, nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.recurrent(x)[0][:, 0])


class Encoder(nn.Module):
    """Normalisation, a projection of the input, a bidirectional layer, pooling: a model with other parts."""

    def __init__(self, recurrent: nn.Module, inputs: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(inputs), nn.Linear(inputs, inputs)
        self.recurrent, self.head = recurrent, nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.recurrent(self.project(self.norm(x)))
        return self.head(out.mean(1))


class LastOfPacked(nn.Module):
    """Reads packed sequences at each one's own last step, of two directions both."""

    def __init__(self, recurrent: nn.Module, hidden: int) -> None:
        super().__init__()
        self.recurrent, self.readout = recurrent, nn.Linear(hidden, 2)

    def forward(self, x: PackedSequence) -> Tensor:
        _, state = self.recurrent(x)
        h = state[0] if isinstance(state, tuple) else state
        return self.readout(torch.cat(list(h[-1 - self.recurrent.bidirectional :]), -1))


class Branched(nn.Module):
    """Two recurrent layers side by side, of which one is used as ``second`` says."""

    def __init__(
        self, second: Callable[[nn.Module, Tensor], Tensor | None], kind: type[nn.LSTM] | type[nn.GRU] = nn.GRU
    ) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(6, 32, batch_first=True), kind(6, 32, batch_first=True)
        critical_(self.first, 100, seeded(110))
        critical_(self.second, 100, seeded(111))
        self.readout, self.with_second = nn.Linear(32, 3), second

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)[0]
        more = self.with_second(self.second, x)
        return self.readout((out if more is None else out + more)[:, -1])


class Stateful(nn.Module):
    """Goes on from the state in which the last batch ended."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.recurrent, self.readout = nn.LSTM(6, 32, batch_first=True), nn.Linear(32, 3)
        critical_(self.recurrent, 100, seeded(112))
        self.state: tuple[Tensor, ...] | None = None
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.recurrent(x, self.state)
        self.state = tuple(part.detach() for part in state) if self.detached else state
        return self.readout(out[:, -1])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def filled(model: nn.Module, kind: str, gate: int, gates: int, value: float) -> None:
    """One gate's bias set in the vectors of one kind, as found in many scripts."""
    for name, bias in model.named_parameters():
        if kind in name:
            n = len(bias) // gates
            with torch.no_grad():
                bias[gate * n : (gate + 1) * n] = value


def scaled(model: nn.Module, kind: str, factor: float) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if kind in name:
                weight.mul_(factor)


# What `isornn.isometric` solves, which takes seconds each: r ~ U(low, high), by cell and length.
SOLVED = {
    "lstm": {
        60: (2.747687396503584, 263.21796915193426),
        80: (4.086644922703129, 353.2703655659834),
        100: (5.42743162453812, 443.2267966826312),
        120: (6.705339503164088, 534.3266395910485),
        200: (11.924720968524754, 896.6679031075082),
    },
    "gru": {100: (5.740950119530884, 733.9145950109771), 150: (10.71631360121727, 1109.0418610960633)},
    "peephole": {150: (8.364064332883064, 675.9536208010375)},
    "t_lstm": {100: (5.740950119530884, 733.9145950109771)},
}


def critical_spec(cell: str, length: int) -> Spec:
    """`isornn.isometric`'s spec."""
    law = BiasLaw("timescale", *SOLVED[cell][length])
    weak, sees = Gate(weight_var=1e-5), Gate(weight_var=1e-5, input_var=1.0)
    only_sees, keeps = Gate(input_var=1.0), replace(weak, bias_law=law)
    writes = replace(sees, bias_law=replace(law, sign=-1))
    gates = {
        "lstm": {"i": writes, "f": keeps, "g": sees, "o": Gate(weight_var=1.0)},
        "gru": {"r": weak, "z": replace(sees, bias_law=law), "nx": only_sees, "nh": weak},
        "peephole": {"i": writes, "f": keeps, "g": sees, "o": weak},
        "t_lstm": {"f": replace(only_sees, bias_law=law), "z": only_sees, "o": only_sees},
    }
    return Spec(cell_named(cell), gates[cell], biases="fixed")


def critical_(module: nn.Module, length: int, generator: torch.Generator) -> None:
    """`isornn.init.isometric_` without the solving."""
    cell = recurrent_layers(module)[0].cell.name
    isornn.init.apply_(module, critical_spec(cell, length), generator=generator)


class StatesReshaped(nn.Module):
    """Reads the last states (layers, B, N) by a reshape to (B, layers N), which takes those of several sequences."""

    def __init__(self, recurrent: nn.Module, features: int) -> None:
        super().__init__()
        self.recurrent, self.readout = recurrent, nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.recurrent(x)[1].reshape(len(x), -1))


class StatesTransposed(StatesReshaped):
    """Reads the same states sequence by sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.recurrent(x)[1].transpose(0, 1).reshape(len(x), -1))


class PaddedFurther(LastOutput):
    """Reads the last of more steps than any sequence has."""

    def forward(self, x: Tensor | PackedSequence) -> Tensor:
        out, _ = pad_packed_sequence(self.recurrent(x)[0], batch_first=True, total_length=120)
        return self.readout(out[:, -1])


class FromStatics(nn.Module):
    """Starts from a state that a linear layer makes of a sequence's own numbers."""

    def __init__(self, recurrent: nn.Module, hidden: int, size: float) -> None:
        super().__init__()
        self.recurrent, self.start, self.readout = recurrent, nn.Linear(3, hidden), nn.Linear(hidden, 1)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        state = self.start(self.size * x[:, 0, :3])[None]
        return self.readout(self.recurrent(x, state)[0][:, -1])


def stacked(recurrent: nn.Module) -> nn.Module:
    for name, parameter in recurrent.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(parameter, generator=seeded(14))
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(parameter, generator=seeded(15))
        else:
            nn.init.zeros_(parameter)
    return recurrent


def padded(batch: Tensor, lengths: list[int], value: float) -> Tensor:
    for sequence, length in zip(batch, lengths, strict=True):
        sequence[length:] = value
    return batch


def as_packed(batch: Tensor, lengths: list[int]) -> PackedSequence:
    """A batch (B, T, D) as sequences of these lengths."""
    return pack_padded_sequence(batch, torch.tensor(lengths), batch_first=True, enforce_sorted=False)


def findings_of(known: KnownModel) -> list[Finding]:
    """What a diagnosis finds, but for denormal numbers, whose cost is the machine's."""
    every = findings(measure(known.model, known.batch, known.length, theory=False))
    found = [finding for finding in every if finding.kind != "denormals"]
    for finding in found:
        json.dumps(finding.to_json(), allow_nan=False)
        assert any(sign.isdigit() for sign in finding.sentence)
        assert any("bar: " in value for value in finding.evidence.values())
        assert finding.remedy or finding.kind == CANNOT_TELL
    return found


def kinds_of(found: Iterable[Finding]) -> set[str]:
    """Without what cannot be told."""
    return {finding.kind for finding in found} - {CANNOT_TELL}
