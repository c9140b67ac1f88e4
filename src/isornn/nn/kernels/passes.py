"""One pass over a sequence: by which way it runs, and the loop over its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from isornn.nn.kernels.device import runs_triton
from isornn.nn.kernels.scan_steps import carries_affinely, run_by_scan
from isornn.nn.kernels.schedule import Product, Schedule, Stage
from isornn.nn.kernels.threads import shared
from isornn.nn.kernels.triton_source import one_launch

# Multiplications and additions in a step's recurrent products up to which a loop that is compiled with them beats calls
# of the library, and bytes of their weights from which on it does again; between, it is no faster, and takes longer to
# compile.
_SMALL, _WIDE_BYTES = 1 << 18, 1 << 19
# Packing the matrices for a compiled loop is not repaid by fewer steps, and takes as long as the loop saves with one
# vector for so many bytes.
_FEW_STEPS, _PACKED_BY_A_VECTOR = 4, 1 << 17
# Every thread of a compiled loop reads all weights at each step, the library's threads a part each, which is faster
# where the weights are too large for a core's own cache and a thread has too few sequences to use them for.
_CACHED_BYTES = 1 << 20
_FEW_SEQUENCES = 4
# Nanoseconds that one core takes for a number that a compiled loop reads or writes, and for one multiplication.
_PER_NUMBER, _PER_PRODUCT = 1.0, 0.025

Arrays = dict[str, Tensor]
Way = Literal["compiled", "stepwise", "triton", "scan", "torch"]


def columns_of(arrays: Arrays, product: Product) -> Tensor:
    """A product's rows, (..., count N)."""
    start = product.target.part or 0
    return arrays[product.target.array][..., start : start + len(product.gates), :].flatten(-2)


class Pass:
    """One pass over a sequence: step by step with the library's products, or wholly in compiled code."""

    def __init__(
        self, schedule: Schedule, direction: str, arrays: Arrays, matrices: Mapping[str, Tensor], way: Way | None
    ) -> None:
        self.schedule, self.direction, self.arrays, self.matrices = schedule, direction, arrays, matrices
        self.first = schedule.program.cell.states[0]
        self.new = arrays[f"new.{self.first}"]
        self.steps, self.batch = self.new.shape[:2]
        self.way = way or self._chosen()

    def _chosen(self) -> Way:
        if self.new.device.type == "cpu":
            packed_in_vain = self.matrices and self.steps < _FEW_STEPS
            return "compiled" if not packed_in_vain and (self._is_small() or self._is_wide()) else "stepwise"
        if runs_triton(self.new.device) and self._for_gpu() is not None:
            return "triton"
        return "scan" if carries_affinely(self.schedule.program.cell) else "torch"

    def _is_small(self) -> bool:
        return 2 * self.batch * sum(matrix.numel() for matrix in self.matrices.values()) <= _SMALL

    def _is_wide(self) -> bool:
        size = sum(matrix.nbytes for matrix in self.matrices.values())
        threads = torch.get_num_threads()
        shared_weights = threads > 1 and size > _CACHED_BYTES and self.batch < _FEW_SEQUENCES * threads
        repaid = self.steps * self.batch * _PACKED_BY_A_VECTOR >= size
        return size >= _WIDE_BYTES and repaid and not shared_weights

    def run(self) -> None:
        if self.way == "compiled":
            self._compiled()
        elif self.way == "scan":
            run_by_scan(self.schedule, self.direction, self.arrays)
        else:
            with torch.cuda.device_of(self.new):  # Triton launches on the current device
                self._by_steps()

    def _by_steps(self) -> None:
        if self.way == "triton" and one_launch(self.schedule):
            from isornn.nn.kernels.triton_steps import launch_all_steps

            launch_all_steps(self._for_gpu(), self.schedule, self.direction, self.arrays)
        elif self.direction == "forward":
            self._forward()
        else:
            self._backward()

    def _for_gpu(self) -> Any:
        from isornn.nn.kernels.compiled import compiled_for_gpu

        return compiled_for_gpu(self.schedule.program.cell)

    def _compiled(self) -> None:
        from isornn.nn.kernels.compiled import compiled
        from isornn.nn.kernels.products import SIZES, packed

        arrays = self.arrays | {f"matrix.{gate}": packed(matrix) for gate, matrix in self.matrices.items()}
        given = [arrays[name] for name in self.schedule.run_arrays[self.direction]]
        products = self.steps * self.batch * sum(matrix.numel() for matrix in self.matrices.values())
        work = _PER_NUMBER * sum(value.numel() for value in given) + _PER_PRODUCT * products
        loop = getattr(compiled(self.schedule.program.cell), self.direction)
        shared(loop, *given, over=self.batch, work=work, least=SIZES[0])

    def _forward(self) -> None:
        read, states = self.arrays[f"initial.{self.first}"], self.arrays[f"new.{self.first}"].unbind()
        stages = [(stage.gate, self._bound(stage)) for stage in self.schedule.forward]
        products = {product.gates[0]: self._product(product) for product in self.schedule.forward_products}
        plain = products[self.schedule.layout.plain[0]] if self.schedule.layout.plain else None
        for t in range(self.steps):
            if plain is not None:
                plain(t, read)
            for gate, stage in stages:
                stage(t)
                if gate is not None:
                    products[gate](t, self.arrays["read"])
            read = states[t]

    def _product(self, product: Product) -> Callable[[int, Tensor], object]:
        """The product at step t of what is read: added to the drive, or written to the buffer."""
        matrix, columns = self.matrices[product.gates[0]], columns_of(self.arrays, product)
        if product.target.array == "product":
            return lambda t, read: torch.mm(read, matrix, out=columns)
        each = columns.unbind()
        return lambda t, read: each[t].addmm_(read, matrix)

    def _backward(self) -> None:
        carried, of_read = self.arrays[f"carried.{self.first}"], self.arrays["of_read"]
        stages = [(stage.gate, self._bound(stage)) for stage in self.schedule.backward]
        found = {
            product.gates[0]: columns_of(self.arrays, product).unbind() for product in self.schedule.backward_products
        }
        gated = {gate: found.pop(gate) for gate in self.schedule.gated}
        plain = [(self.matrices[gate], du) for gate, du in found.items()]
        for t in reversed(range(self.steps)):
            for gate, stage in stages:
                if gate is not None:
                    torch.mm(gated[gate][t], self.matrices[gate], out=of_read)
                stage(t)
            for matrix, du in plain:
                carried.addmm_(du[t], matrix)

    def _bound(self, stage: Stage) -> Callable[[int], object]:
        """The pointwise part of step t, on arrays that it already knows."""
        if self.way == "torch":
            from isornn.nn.kernels.torch_steps import stepped_in_torch

            return stepped_in_torch(stage, self.arrays)
        if self.way == "triton":
            from isornn.nn.kernels.triton_steps import launched_at_each_step

            return launched_at_each_step(self._for_gpu(), self.schedule, self.direction, stage, self.arrays)
        from isornn.nn.kernels.compiled import compiled
        from isornn.nn.kernels.numba_source import step_name

        function = getattr(compiled(self.schedule.program.cell), step_name(self.direction, stage.gate))
        arrays = [self.arrays[name].detach().numpy() for name in stage.arrays]
        return lambda t: function(*arrays, t, 0, self.batch)
