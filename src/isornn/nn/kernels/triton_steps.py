"""Launches of a cell's Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from isornn.nn.kernels.numba_source import step_name
from isornn.nn.kernels.schedule import Schedule, Stage
from isornn.nn.kernels.triton_source import arguments_of

_BLOCK = 128
_WARPS = 4
_BLOCK_OF_A_PASS = 32  # elements, of which a warp walks over all steps: as many programs as there are, as `scan_triton`


def launched_at_each_step(
    module: ModuleType, schedule: Schedule, direction: str, stage: Stage, arrays: Mapping[str, Tensor]
) -> Callable[[int], None]:
    """The stage at step t, written to the arrays, on the stream that is now the current one."""
    from triton import JITFunction  # here, as this file is imported where Triton is not installed

    kernel = getattr(module, step_name(direction, stage.gate))
    given = _arguments(arguments_of(schedule, direction, stage), arrays)
    batch, width = _elements(arrays)
    grid = (-(-batch * width // _BLOCK), 1, 1)
    if not isinstance(kernel, JITFunction):  # but the interpreter's
        return lambda t: kernel[grid](*given, t, batch, width, block=_BLOCK)
    # A usual launch looks at every argument again, and asks the driver about every tensor's memory: 21 of the 53
    # microseconds that the processor beside an H200 took for a step forwards. This way it takes 9, and the step 28.
    compiled = kernel.warmup(*given, 0, batch, width, block=_BLOCK, num_warps=_WARPS, grid=grid)
    fixed = [value.data_ptr() if isinstance(value, Tensor) else value for value in given]
    launch, stream = compiled[grid], torch.cuda.current_stream().cuda_stream
    return lambda t: launch(*fixed, t, batch, width, _BLOCK, stream=stream)


def launch_all_steps(module: ModuleType, schedule: Schedule, direction: str, arrays: Mapping[str, Tensor]) -> None:
    """A pass over the sequence of a cell without matrix products."""
    (stage,) = getattr(schedule, direction)
    given = _arguments(arguments_of(schedule, direction, stage), arrays)
    batch, width = _elements(arrays)
    steps = len(arrays[f"new.{schedule.program.cell.states[0]}"])
    grid = (-(-batch * width // _BLOCK_OF_A_PASS),)
    getattr(module, direction)[grid](*given, steps, batch, width, block=_BLOCK_OF_A_PASS, num_warps=1)


def _arguments(names: list[str], arrays: Mapping[str, Tensor]) -> list[Any]:
    return [len(arrays[name.removesuffix(" steps")]) if name.endswith(" steps") else arrays[name] for name in names]


def _elements(arrays: Mapping[str, Tensor]) -> tuple[int, int]:
    """B and N."""
    initial = next(value for name, value in arrays.items() if name.startswith("initial."))
    return initial.shape[0], initial.shape[1]
