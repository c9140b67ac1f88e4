"""The specs that benchmarks measure: one of each cell with a recurrent matrix, of sizeable weights, and random ones."""

from __future__ import annotations

import torch

from isornn import Gate, Spec
from isornn.cells import CELLS, GRU, LSTM, ChoGRU, Minimal, Peephole, Vanilla
from isornn.cells.random_specs import random_spec

SEED = 7


def gate(weight_var: float, input_var: float, bias_var: float = 0.0, bias_mean: float = 0.0) -> Gate:
    return Gate(weight_var, input_var, bias_var=bias_var, bias_mean=bias_mean)


CHECKED = {
    "vanilla": Spec(Vanilla(), {"h": gate(2, 0.5, 0.1, 0.2)}),
    "minimal": Spec(Minimal(), {"u": gate(3, 2, 0.5, 1)}),
    "peephole": Spec(Peephole(), {"i": gate(2, 0.5, 0, 0.5), "f": gate(4, 1, 0.1, 2), "g": gate(3, 0.5)}),
    "gru": Spec(GRU(), {"r": gate(2, 0.5), "z": gate(3, 1, 0, 1), "nx": gate(0, 0.5), "nh": gate(4, 0)}),
    "gru_cho": Spec(ChoGRU(), {"z": gate(3, 1, 0, 1), "r": gate(2, 0.5, 0.1, 0.5), "n": gate(4, 0.5)}),
    "lstm": Spec(
        LSTM(), {"i": gate(2, 1, 0, 0.5), "f": gate(4, 0.5, 0.1, 2), "g": gate(3, 0.5), "o": gate(2, 0.5, 0, 0.5)}
    ),
}


def several(cell: str, count: int) -> list[Spec]:
    """``count`` specs of a cell: the checked one where there is one, then random ones, always the same."""
    generator = torch.Generator().manual_seed(SEED)
    specs = [CHECKED[cell]] if cell in CHECKED else []
    return specs + [random_spec(CELLS[cell](), generator) for _ in range(count - len(specs))]


# Weights of variance 1 and more at every gate, and biases that are the same for all units.
STRONG = {
    "vanilla": Spec(Vanilla(), {"h": gate(2.5, 0.2)}),
    "minimal": Spec(Minimal(), {"u": gate(4, 1, 0, 0.5)}),
    "peephole": Spec(Peephole(), {"i": gate(1, 0.5), "f": gate(1.5, 1, 0, 1), "g": gate(3, 0.5)}),
    "gru": Spec(GRU(), {"r": gate(1, 1), "z": gate(2, 0.5), "nx": gate(0, 0.5), "nh": gate(5, 0)}),
    "gru_cho": Spec(ChoGRU(), {"z": gate(2, 0.5, 0, 0.5), "r": gate(1, 1), "n": gate(6, 0.5)}),
    "lstm": Spec(LSTM(), {"i": gate(2, 1), "f": gate(2, 1, 0, 1), "g": gate(4, 0.5), "o": gate(2, 0.5)}),
}
