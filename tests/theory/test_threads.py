"""Several threads may ask at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from isornn.cells import ChoGRU, Gate, Peephole, Spec, Vanilla
from isornn.modes import usual_modes
from isornn.simulation import simulate
from isornn.theory import analyze


def test_eight_threads_answer_as_one_does() -> None:
    gates = {
        "i": Gate(2, 0.5),
        "f": Gate(4, 1, bias_mean=2),
        "g": Gate(3, 0.5),
        "r": Gate(1),
        "z": Gate(1),
        "n": Gate(1),
    }
    specs = [Spec(cell, {k: v for k, v in gates.items() if k in cell.gates}) for cell in (Peephole(), ChoGRU())] * 4
    expected = [analyze(spec, length=5).to_json() for spec in specs[:2]] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda spec: analyze(spec, length=5).to_json(), specs)) == expected


def test_eight_simulations_at_once() -> None:
    spec = Spec(Vanilla(), {"h": Gate(0.9, 0.1)})

    def chi_1(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        found = simulate(spec, width=20, steps=5, networks=2, singular_values=True, generator=generator)
        assert found.spectrum is not None
        return float(found.chi_1.value) + float(found.spectrum.mean.value)

    expected = [chi_1(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(chi_1, range(8))) == expected


def test_modes_that_overlap_leave_the_callers_dtype() -> None:
    """The default dtype is the process's: the last that leaves puts it back, in whatever order they came."""
    torch.set_default_dtype(torch.float64)
    first, second = usual_modes(), usual_modes()
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
