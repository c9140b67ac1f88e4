"""What a layer's options may be, each by itself and with the layer's cell."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from isornn.cells import Cell
from isornn.cells.graph import Leaf
from isornn.cells.trace import graph_of
from isornn.warn import warn

if TYPE_CHECKING:
    from isornn.nn.rnn import RNN

Before = Literal["zero", "first"]
Features = Literal["linear", "tanh"]


def check_options(layer: RNN) -> None:
    """Raise for the first option that is not allowed.

    Raises:
        ValueError: names the option, its value and what is allowed, or why the cell has no use for it.
    """
    _check_sizes(layer)
    _check_switches(layer)
    _check_probabilities(layer)
    _check_projection(layer)
    _check_detaching(layer)
    _check_features(layer)
    if layer.before not in ("zero", "first"):
        raise ValueError(f"before: {layer.before!r} is not allowed; it must be 'zero' or 'first'")


def _check_sizes(layer: RNN) -> None:
    sizes: Mapping[str, int | None] = {
        "input_size": layer.input_size,
        "hidden_size": layer.hidden_size,
        "num_layers": layer.num_layers,
        "checkpoint_every": layer.checkpoint_every,
    }
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"{name}: {size!r} is not allowed; it must be a positive whole number")


def _check_switches(layer: RNN) -> None:
    for name in ("bias", "batch_first", "bidirectional", "untied"):
        switch = getattr(layer, name)
        if not isinstance(switch, bool):
            raise ValueError(f"{name}: {switch!r} is not allowed; it must be True or False")


def _check_probabilities(layer: RNN) -> None:
    shares: Mapping[str, Any] = {"dropout": layer.dropout, "h_detach": layer.h_detach}
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= float(share) <= 1:
            raise ValueError(f"{name}: {share!r} is not allowed; it must be a probability, from 0 to 1")
    if layer.dropout and layer.num_layers == 1:
        warn("dropout acts between layers, of which there is one")


def _check_projection(layer: RNN) -> None:
    size, cell = layer.proj_size, layer.cell
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < layer.hidden_size:
        raise ValueError(f"proj_size: {size!r} is not allowed; it must be a whole number from 0 to hidden_size - 1")
    if not size:
        return
    if not layer.layout.stacks["weight_hh"]:
        raise ValueError(f"proj_size: {cell.name} has no gate that reads the state")
    _check_traced("proj_size", cell)
    if _updates_first_state(cell):
        raise ValueError(
            f"proj_size: {cell.name}'s update reads {cell.states[0]}, which would be narrower than the gates"
        )
    graph = graph_of(cell)
    if graph.gated_reads:
        raise ValueError(
            f"proj_size: {cell.name}'s gate {graph.gated_reads[0]} does not read the projected state itself"
        )
    if wider := graph.depends_on(graph.output) - {Leaf("new state", cell.states[0])}:
        names = ", ".join(sorted(leaf.name for leaf in wider))
        raise ValueError(f"proj_size: {cell.name}'s output reads {names}, wider than the projected state")


def _check_detaching(layer: RNN) -> None:
    if not layer.h_detach:
        return
    _check_traced("h_detach", layer.cell)
    if _updates_first_state(layer.cell):
        cell, first = layer.cell.name, layer.cell.states[0]
        raise ValueError(
            f"h_detach: {cell}'s update reads {first} itself, whose gradient would be lost with the gates'"
        )


def _check_features(layer: RNN) -> None:
    if layer.features not in (None, "linear", "tanh"):
        raise ValueError(f"features: {layer.features!r} is not allowed; it must be 'linear' or 'tanh'")
    if layer.features is not None and not layer.cell.input_enters_pointwise:
        raise ValueError(f"features: the input of {layer.cell.name} does not enter pointwise")


def _check_traced(option: str, cell: Cell) -> None:
    for method, why in graph_of(cell).untraced.items():
        raise ValueError(f"{option}: what {cell.name}.{method} reads is not known: {why}")


def _updates_first_state(cell: Cell) -> bool:
    """Whether the pointwise update, or a gated read, takes the first state, not matrices alone."""
    graph, first = graph_of(cell), Leaf("state", cell.states[0])
    values = [*graph.update.values(), *(graph.reads[gate] for gate in graph.gated_reads if gate in graph.reads)]
    return any(first in graph.depends_on(value) for value in values)
