"""Writes the inventories by which the site links to torch's, numpy's and Python's documentation.

The site is built without a network, so it cannot fetch theirs. These have the names that our docstrings, signatures and
pages use; a name that is missing is shown as code without a link. `make docs-links` checks that every page is there.

    python docs/inventories/make.py
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent

# Names by page, where {} is the name; and how signatures call them.
TORCH = {
    "generated/{}.html": (
        "torch.Generator torch.compile torch.jit.script torch.jit.trace torch.load torch.save torch.set_flush_denormal "
        "torch.nn.Embedding torch.nn.GRU torch.nn.GRUCell torch.nn.LSTM torch.nn.LSTMCell torch.nn.Linear torch.nn.RNN "
        "torch.nn.Module torch.nn.RNNCell torch.nn.utils.parametrizations.orthogonal torch.nn.utils.rnn.PackedSequence "
        "torch.optim.Adam torch.optim.lr_scheduler.LRScheduler"
    ),
    "data.html": "torch.utils.data.DataLoader torch.utils.data.Dataset",
    "fx.html": "torch.fx.Node",
    "optim.html": "torch.optim.Optimizer",
    "size.html": "torch.Size",
    "tensor_attributes.html": "torch.device torch.dtype",
    "tensors.html": "torch.Tensor",
}
ALSO = {
    "torch._C.Generator": "torch.Generator",
    "torch.fx.node.Node": "torch.fx.Node",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.Dataset": "torch.utils.data.Dataset",
    "Module": "torch.nn.Module",
    "Any": "typing.Any",
    "Callable": "collections.abc.Callable",
    "Literal": "typing.Literal",
    "Mapping": "collections.abc.Mapping",
    "Path": "pathlib.Path",
    "Sequence": "collections.abc.Sequence",
}
NUMPY = {
    "reference/generated/{}.html": "numpy.ndarray numpy.savez",
}
PYTHON = {
    "library/collections.abc.html": (
        "collections.abc.Callable collections.abc.Iterable collections.abc.Iterator collections.abc.Mapping "
        "collections.abc.Sequence"
    ),
    "library/abc.html": "abc.ABC",
    "library/constants.html": "None",
    "library/contextlib.html": "contextlib.AbstractContextManager",
    "library/exceptions.html": "ModuleNotFoundError OSError TypeError ValueError",
    "library/functions.html": "bool float int object slice type",
    "library/os.html": "os.PathLike",
    "library/pathlib.html": "pathlib.Path",
    "library/stdtypes.html": "dict frozenset list str tuple",
    "library/typing.html": "typing.Any typing.Literal typing.Protocol",
}


def lines(pages: dict[str, str]) -> Iterator[str]:
    """A line of an inventory for every name: name, kind, priority, address, title."""
    for page, names in pages.items():
        for name in names.split():
            known_as = [name, *(also for also, public in ALSO.items() if public == name)]
            for alias in known_as:
                kind = "class" if name.rpartition(".")[2][0].isupper() or "." not in name else "function"
                yield f"{alias} py:{kind} 1 {page.format(name)}#{name} {name}\n"


def write(name: str, pages: dict[str, str]) -> None:
    """An inventory of version 2: four lines of text, then the names, compressed."""
    head = (
        f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    (HERE / f"{name}.inv").write_bytes(head.encode() + zlib.compress("".join(lines(pages)).encode(), 9))


if __name__ == "__main__":
    write("torch", TORCH)
    write("numpy", NUMPY)
    write("python", PYTHON)
