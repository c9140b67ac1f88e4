"""The recurrence of any cell whose step can be printed: its tensors as arrays of a pass, and gradients of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from isornn.cells import Cell
from isornn.cells.graph import evaluate
from isornn.cells.trace import graph_of
from isornn.nn.kernels.contract import Gradients, Kernel, RecurrenceArgs
from isornn.nn.kernels.passes import Arrays, Pass, Way, columns_of
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.program import with_autograd
from isornn.nn.kernels.schedule import Product, Schedule
from isornn.nn.kernels.steps import dense, outer_products, weight_gradient


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
        Pass(schedule, "forward", arrays, matrices, self.way).run()
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
        Pass(schedule, "backward", arrays, matrices, self.way).run()
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
            du = columns_of(arrays, product)
            if product.gates[0] in self.schedule.gated:
                parts.append(outer_products(du, arrays[f"reads.{product.gates[0]}"]))
            else:
                parts.append(weight_gradient(du, arrays[f"initial.{first}"], arrays[f"new.{first}"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
