"""Measurements of a factorised network during training: figures 2 and 3."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from isornn.experiments.target import Bench
from isornn.nn import SpectralRNN, spectral
from isornn.tasks import Task, loader
from isornn.training import Configuration, NonFiniteLoss, SequenceModel, State, train
from isornn.training.building import build_optimiser

# As in this library's copy benchmark.
RATES = {"rate": 1e-3, "geodesic_rate": 1e-2, "spectrum_rate": 1.0}
PAPER_RATES = {"rate": 1e-4, "geodesic_rate": 1e-6, "spectrum_rate": 1e-4}

Look = Callable[[SequenceModel], list[float]]


def followed(
    bench: Bench, task: Task, fields: dict[str, Any], seed: int, look: Look, **options: Any
) -> list[list[float]]:
    """The values of ``look`` at the start and every so many updates, until a number is not finite.

    Args:
        task, fields: the same, built and as a configuration has it.
        options: of `SpectralRNN`.
    """
    settings, generator = bench.settings, bench.generator(seed)
    layer = SpectralRNN(task.inputs, settings["units"], generator=generator, **options)
    model = SequenceModel.of(task, layer)
    with torch.no_grad():
        for parameter in spectral.groups(model)[-1]["params"]:  # torch's start, by this generator
            parameter.uniform_(-1, 1, generator=generator).mul_(settings["units"] ** -0.5)
    configuration = Configuration.from_mapping(
        {
            "task": fields,
            "model": {"name": "spectral", "hidden": settings["units"]},
            "optimiser": {"name": "geodesic", "rest": "rmsprop", **settings["rates"]},
            "updates": settings["updates"],
        }
    )
    rows = [look(model)]

    def after_update(state: State) -> None:
        if state.update % settings["every"] == 0:
            rows.append(look(model))

    state = State(model, build_optimiser(configuration.optimiser, model))
    batches = iter(loader(task, 50, 1000 * bench.seed + seed))
    with suppress(NonFiniteLoss):  # the rows end there
        train(state, batches, settings["updates"], clip=1.0, on_update=[after_update])
    return rows
