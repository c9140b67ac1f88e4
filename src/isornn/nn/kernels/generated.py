"""The recurrence of any cell whose step can be printed: arrays, matrix products, and the printed loops between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from isornn.cells import Cell
from isornn.cells.graph import evaluate
from isornn.cells.trace import graph_of
from isornn.nn.kernels.contract import Gradients, Kernel, RecurrenceArgs
from isornn.nn.kernels.device import runs_triton
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.program import with_autograd
from isornn.nn.kernels.scan_steps import carries_affinely, run_by_scan
from isornn.nn.kernels.schedule import Product, Schedule, Stage
from isornn.nn.kernels.steps import dense, outer_products, weight_gradient
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


@dataclass(frozen=True)
class GeneratedKernel(Kernel):
    """The `Kernel` that is printed from a cell's own `update`, `read` and `output`.

    Args:
        cell: one of which a program can be printed.
        way: all steps in one compiled loop, matrix products included (``"compiled"``); each step by itself with the
            library's matrix products and compiled code between them (``"stepwise"``), Triton's (``"triton"``: one
            launch a pass where there are no products) or torch's own operations (``"torch"``); or whole sequences by
            torch's operations, where states are carried affinely (``"scan"``). By device and size if not given.
    """

    cell: Cell
    way: Way | None = None

    @cached_property
    def schedule(self) -> Schedule:
        return schedule_of(self.cell)

    @property
    def kept_widths(self) -> tuple[int, ...]:
        """See `Kernel`."""
        widths = (len(self.schedule.layout.driven) * self.schedule.keeps_drive, self.schedule.saved)
        return tuple(width for width in widths if width)

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        """See `Kernel`."""
        schedule, (steps, batch), hidden = self.schedule, drive.shape[:2], given.initial[0].shape[-1]

        def blank(*shape: int) -> Tensor:
            return drive.new_empty(*shape, hidden)

        arrays = self._arrays(given)
        arrays["drive"] = drive.unflatten(-1, (-1, hidden))
        arrays["saved"] = blank(steps if keep else 1, batch, schedule.saved)
        arrays["product"] = blank(batch, len(schedule.buffered))
        arrays["read"] = blank(batch)
        arrays |= {f"new.{name}": blank(steps, batch) for name in schedule.program.new}
        undriven = len(schedule.layout.undriven)
        offset = drive.new_zeros(undriven * hidden) if given.offset is None else given.offset
        arrays["offset"] = offset.view(undriven, hidden)
        matrices = self._matrices(given.weight, schedule.forward_products, hidden, transposed=True)
        _Run(schedule, "forward", arrays, matrices, self.way).run()
        results = [arrays[f"new.{name}"] for name in schedule.program.new]
        whole = [drive] * schedule.keeps_drive + [arrays["saved"].flatten(2)] * bool(schedule.saved)
        return results, whole if keep else []

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        """See `Kernel`."""
        schedule, first = self.schedule, given.initial[0]
        (steps, batch), hidden = results[0].shape[:2], first.shape[-1]
        program, layout = schedule.program, schedule.layout
        arrays = self._arrays(given)
        names = ["drive"] * schedule.keeps_drive + ["saved"] * bool(schedule.saved)
        arrays |= {name: value.unflatten(-1, (-1, hidden)) for name, value in zip(names, kept, strict=True)}
        arrays |= {f"new.{name}": value for name, value in zip(program.new, results, strict=True)}
        arrays |= {f"direct.{name}": value for name, value in zip(program.new, dense(grads, first), strict=True)}
        arrays |= {f"carried.{name}": torch.zeros_like(first) for name in self.cell.states}
        arrays |= {f"dunit.{place}": torch.zeros_like(first) for place in range(len(program.units))}
        arrays |= {f"reads.{gate}": torch.empty_like(results[0]) for gate in schedule.gated}
        if not schedule.overwrites:
            arrays[schedule.gradients] = first.new_empty(steps, batch, len(layout.driven), hidden)
        arrays["du_alone"] = first.new_empty(steps, batch, len(layout.undriven), hidden)
        arrays["of_read"] = torch.empty_like(first)
        if given.x is not None:
            arrays["dx"] = torch.empty_like(given.x)
        matrices = self._matrices(given.weight, schedule.backward_products, hidden, transposed=False)
        _Run(schedule, "backward", arrays, matrices, self.way).run()
        return Gradients(
            drive=arrays[schedule.gradients].flatten(2),
            weight=None if given.weight is None else self._of_weight(arrays),
            offset=None if given.offset is None else arrays["du_alone"].sum((0, 1)).flatten(),
            x=arrays.get("dx"),
            units=self._of_units(given.units, [arrays[f"dunit.{place}"].sum(0) for place in range(len(program.units))]),
            initial=[arrays[f"carried.{name}"] for name in self.cell.states],
        )

    def _arrays(self, given: RecurrenceArgs) -> Arrays:
        """What both directions start from."""
        arrays = {f"initial.{name}": value for name, value in zip(self.cell.states, given.initial, strict=True)}
        arrays |= {f"unit.{place}": value for place, value in enumerate(self._units(given.units))}
        return arrays if given.x is None else arrays | {"x": given.x}

    def _units(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The expressions in the cell's parameters alone, (N,) each."""
        named = dict(zip(self.cell.parameters, parameters, strict=True))
        if self._parameters_themselves is not None:
            return [named[name].clone() for name in self._parameters_themselves]  # numpy would pin a parameter's memory
        units = self.schedule.program.units
        value = graph_of(self.cell).interpret(lambda leaf: named[leaf.name], evaluate, units)
        return [value(node).contiguous() for node in units]

    @cached_property
    def _parameters_themselves(self) -> tuple[str, ...] | None:
        """By expression in parameters alone, the parameter that it is; ``None`` where one is not just that."""
        leaves, units = graph_of(self.cell).leaves, self.schedule.program.units
        return tuple(leaves[node].name for node in units) if all(node in leaves for node in units) else None

    def _of_units(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the cell's parameters from those of the expressions in them."""
        if self._parameters_themselves is not None:
            by_name = dict(zip(self._parameters_themselves, gradients, strict=True))
            named = zip(self.cell.parameters, parameters, strict=True)
            return [by_name[name] if name in by_name else torch.zeros_like(value) for name, value in named]

        def differentiated() -> list[Tensor]:
            leaves = [value.detach().requires_grad_() for value in parameters]
            pairs = zip(self._units(leaves), gradients, strict=True)
            reaching = [(value, gradient) for value, gradient in pairs if value.requires_grad]
            if not reaching:
                return [torch.zeros_like(value) for value in parameters]
            values, arriving = zip(*reaching, strict=True)
            found = torch.autograd.grad(values, leaves, arriving, allow_unused=True)
            return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True)]

        return with_autograd(differentiated)

    def _matrices(
        self, weight: Tensor | None, products: Sequence[Product], hidden: int, *, transposed: bool
    ) -> dict[str, Tensor]:
        """By the first gate of a product, the matrices of its gates in one."""
        if weight is None:
            return {}
        stack = self.schedule.layout.stacks["weight_hh"]
        parts = dict(zip(stack, weight.split(hidden), strict=True))
        matrices = {}
        for product in products:
            matrix = weight if product.gates == stack else torch.cat([parts[gate] for gate in product.gates])
            matrices[product.gates[0]] = matrix.t() if transposed else matrix
        return matrices

    def _of_weight(self, arrays: Arrays) -> Tensor:
        first, parts = self.cell.states[0], []
        for product in self.schedule.backward_products:
            du = _columns(arrays, product)
            if product.gates[0] in self.schedule.gated:
                parts.append(outer_products(du, arrays[f"reads.{product.gates[0]}"]))
            else:
                parts.append(weight_gradient(du, arrays[f"initial.{first}"], arrays[f"new.{first}"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _columns(arrays: Arrays, product: Product) -> Tensor:
    """A product's rows, (..., count N)."""
    start = product.target.part or 0
    return arrays[product.target.array][..., start : start + len(product.gates), :].flatten(-2)


class _Run:
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
        matrix, columns = self.matrices[product.gates[0]], _columns(self.arrays, product)
        if product.target.array == "product":
            return lambda t, read: torch.mm(read, matrix, out=columns)
        each = columns.unbind()
        return lambda t, read: each[t].addmm_(read, matrix)

    def _backward(self) -> None:
        carried, of_read = self.arrays[f"carried.{self.first}"], self.arrays["of_read"]
        stages = [(stage.gate, self._bound(stage)) for stage in self.schedule.backward]
        found = {
            product.gates[0]: _columns(self.arrays, product).unbind() for product in self.schedule.backward_products
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
