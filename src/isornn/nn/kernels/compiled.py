"""Printed kernels as modules: kept in a folder of the user's, so that later processes find them compiled."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType

from isornn.cells import Cell
from isornn.files import replacing
from isornn.nn.kernels import arithmetic, numba_source, products, rows, triton_source
from isornn.nn.kernels.planning import schedule_of


@functools.cache
def compiled(cell: Cell) -> ModuleType:
    """The module of the cell's loops, which are compiled at their first call and then kept beside it."""
    source = numba_source.source_of(schedule_of(cell))
    # Numba does not see when the functions change that it has compiled into a loop: they are part of the name.
    name = _name_of(cell, source + "".join(map(inspect.getsource, (arithmetic, products, rows))))
    path = _kept(name, source)
    return _in_memory(name, source) if path is None else _loaded(name, path)


@functools.cache
def compiled_for_gpu(cell: Cell) -> ModuleType | None:
    """The module of the cell's Triton kernels; ``None`` where no file can be written, from which Triton reads them."""
    source = triton_source.source_of(schedule_of(cell))
    name = _name_of(cell, source)
    path = _kept(name, source)
    return None if path is None else _loaded(name, path)


def _name_of(cell: Cell, content: str) -> str:
    return f"isornn_{cell.name}_{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by this name numba finds it again when it loads what it has kept
    spec.loader.exec_module(module)
    return module


def folder() -> Path:
    """Where kernels are kept: ``$NUMBA_CACHE_DIR/isornn`` if that is set, else ``~/.cache/isornn`` or the like."""
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(chosen) / "isornn"


def _kept(name: str, source: str) -> Path | None:
    """The file that holds the source; ``None`` where it cannot be written."""
    path = folder() / f"{name}.py"
    try:
        if not path.exists() or path.read_bytes() != source.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as fresh:
                fresh.write_bytes(source.encode())
    except OSError:
        return None
    return path


def _in_memory(name: str, source: str) -> ModuleType:
    """The module of a source that is in no file; compiled anew by every process."""
    module, file = ModuleType(name), f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return module
