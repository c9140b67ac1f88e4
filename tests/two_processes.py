"""What two processes find of layers whose copies, or parts, they hold."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import isornn.init
from isornn import nn
from own_cells import MGU, Branching

T, B, D, N = 9, 6, 3, 5
KINDS: dict[str, Callable[[], torch.nn.Module]] = {
    "LSTM": lambda: nn.LSTM(D, N, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(D, N),
    "VanillaRNN": lambda: nn.VanillaRNN(D, N),
    "PeepholeLSTM": lambda: nn.PeepholeLSTM(D, N, 2),
    "an own cell": lambda: nn.RNN(MGU(), D, N),
    "an own cell that is not traced": lambda: nn.RNN(Branching(), D, N),
    "SpectralRNN": lambda: nn.SpectralRNN(D, N),
    "checkpointed": lambda: nn.LSTM(D, N, checkpoint_every=3),
}


def squared(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x)[0].square().mean()
    return loss


def apart(kind: str, rank: int) -> float:
    """The largest difference of a gradient in two processes, half a batch each, from that in one; to its largest."""
    torch.manual_seed(0)
    layer, x = KINDS[kind](), torch.randn(T, B, D)
    alone = copy.deepcopy(layer)
    squared(alone, x).backward()
    wrapped = DistributedDataParallel(layer)  # which sends gradients for as long as it is there
    squared(wrapped, x.chunk(2, 1)[rank]).backward()
    pairs = [(own.grad, one.grad) for own, one in zip(layer.parameters(), alone.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if a is not None and b is not None)


def answer(use: Callable[[], object]) -> str:
    try:
        use()
    except isornn.init.ModuleError as error:
        return str(error)
    return "done"


def as_it_was(model: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def starts(rank: int) -> list[Any]:
    """What every way to write to a wrapped model answers; whether it left it alone; what reading it finds."""
    torch.manual_seed(0)
    model, x = torch.nn.LSTM(D, 16), torch.randn(60, B, D)
    wrapped = DistributedDataParallel(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torch.manual_seed(rank)
    own = x.chunk(2, 1)[rank]
    answers = [
        answer(lambda: isornn.init.critical_(wrapped, batch=own)),
        answer(lambda: isornn.init.critical_(wrapped, 20)),
        answer(lambda: isornn.init.standard_(wrapped)),
        answer(lambda: isornn.init.gradient_flossing_(wrapped, batch=own, updates=1)),
        answer(lambda: isornn.diagnosis.redraw_(wrapped, "LSTM l0", 20)),
    ]
    report = isornn.diagnose(wrapped, own)
    names = isornn.init.spec_of(wrapped).cell.name, report.diagnosis.layers[0].info.name
    return [answers, report.fix_(), as_it_was(model, before), names]


def split() -> list[str]:
    """What each use of a model answers whose parameters are split between the processes."""
    model, x = torch.nn.LSTM(D, 16), torch.randn(60, B, D)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    uses: list[Callable[[Any], object]] = [
        isornn.init.spec_of,
        lambda model: isornn.init.critical_(model, 20),
        lambda model: isornn.diagnose(model, x),
        isornn.diagnosis.Monitor,
    ]
    return [answer(lambda use=use: use(model)) for use in uses]  # type: ignore[misc]


def one_of_two(rank: int, file: str, results: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    found = {"apart": {kind: apart(kind, rank) for kind in KINDS}, "starts": starts(rank), "split": split()}
    torch.save(found, f"{results}{rank}")
    distributed.barrier()
    distributed.destroy_process_group()
