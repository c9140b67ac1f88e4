"""Where a law may have edges: what units can do at most, whatever their pre-activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec, Values, initial_parameters
from isornn.theory.population.units import Laws, Units
from isornn.theory.spectra.blocks import advanced, step_of
from isornn.theory.spectra.chain import Step, carried, joined, row_energy

_SEED = 0
_PROBED, _LAST_DRAWS = 4000, 16
_DRIVES = ((3.0, 60), (30.0, 600))  # widths and steps
_WALL = 1e-3


@dataclass(frozen=True)
class Extremes:
    """What units can do.

    Args:
        bounded: whether rows of J stay bounded over units.
        singular: whether det A comes near 0: then the support begins at 0, for a square matrix with rows that the
            random part alone can make dependent.
        path: the units that carry and that receive most; they have next to no weight in the law, and where rows are
            bounded they say where its support ends.
    """

    bounded: bool
    singular: bool
    path: list[Step]


def extremes(spec: Spec, steps: int) -> Extremes:
    """Found by driving units with pre-activations of standard deviation 3 over 60 steps and 30 over 600, half of the
    units by the same ones at all steps but the last, which finds states that can grow.
    """
    largest, nearest = [], []
    for scale, length in _DRIVES:
        path = _driven(spec, scale, length, steps)
        births = [float(torch.einsum("ssn->n", v).max()) for v in path[0].births.values()]
        largest.append(torch.tensor([float(path[0].mean.square().sum((0, 1)).max()), *births]))
        values = torch.linalg.svdvals(path[0].carried.movedim(-1, 0))
        nearest.append(float(values[:, -1].min()) <= _WALL * float(values[:, 0].max()))
    most = torch.stack([carried(path).argmax(), row_energy(path).argmax()])
    few = [step.taken(most, torch.ones(2, dtype=torch.float64)) for step in path]
    return Extremes(bool((largest[1] <= 1.5 * largest[0]).all()), any(nearest), few)


def _driven(spec: Spec, scale: float, length: int, steps: int) -> list[Step]:
    generator, laws = torch.Generator().manual_seed(_SEED), Laws.of(spec)
    cell = laws.cell
    gates = [gate for gate in cell.gates if _moves(laws, gate)]
    kept = torch.arange(_PROBED) % 2 == 0

    def drive() -> tuple[dict[str, Tensor], Tensor]:
        draws = scale * torch.randn(len(cell.gates) + 1, _PROBED, dtype=torch.float64, generator=generator)
        values = {
            gate: laws.bias_mean[gate] + (value if gate in gates else torch.zeros_like(value)).expand(1, 1, 1, -1)
            for gate, value in zip(cell.gates, draws, strict=False)
        }
        return values, laws.input_variance.sqrt() * draws[-1].expand(1, 1, 1, -1)

    states = {name: torch.zeros(1, 1, 1, _PROBED, dtype=torch.float64) for name in cell.states}
    (same, same_x), parameters = drive(), initial_parameters(cell)
    for _ in range(length):
        values, x = drive()
        mixed = {gate: torch.where(kept, same[gate], value) for gate, value in values.items()}
        u, mixed_x = Values(**mixed, **parameters), torch.where(kept, same_x, x)
        new = cell.update(Values(**states), u, mixed_x)
        states = {name: value.expand(states[name].shape) for name, value in new.items()}
    found = []
    for _ in range(_LAST_DRAWS):
        path, units = [], Units(states, {}, None)
        for _ in range(steps):
            values, x = drive()
            u = Values(**values, **parameters)
            path.append(step_of(laws, units, u, x))
            units = advanced(laws, units, u, x)
        found.append(path)
    return [joined(parts) for parts in zip(*found, strict=True)]


def _moves(laws: Laws, gate: str) -> bool:
    """Whether the gate's pre-activation varies over units."""
    spread = float(laws.weight[gate] + laws.drive[gate] + laws.bias_var[gate])
    return laws.bias_law[gate] is not None or spread > 0
