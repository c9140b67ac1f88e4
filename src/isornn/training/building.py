"""From a configuration to the objects that are trained: model, start, optimiser, schedule."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.optim import SGD, Adam, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LRScheduler,
    MultiStepLR,
    ReduceLROnPlateau,
    StepLR,
)

from isornn import init
from isornn.cells import Input, cell_named
from isornn.cells.starts import PRESETS, TIMED, preset
from isornn.formatting import counted
from isornn.nn import RNN, OwnSteps, SpectralRNN, soft_constraints, spectral
from isornn.optim import GeodesicSGD
from isornn.tasks import Task, loader
from isornn.training.configuration import Choice, Configuration, cell_options, spec_of_start
from isornn.training.fields import ConfigurationError
from isornn.training.model import SequenceModel
from isornn.training.problems import Problem

FIRST_ITEMS = 64  # from which a start is measured


def build_model(configuration: Configuration, problem: Problem) -> SequenceModel:
    """The model at its start, all of it drawn from torch's global generator.

    Raises:
        ValueError: options of the model or the start that do not fit each other; names the field.
    """
    task, model = problem.training, configuration.model
    embedding = model["embedding"] if task.symbolic else None
    recurrent = _recurrent(model, embedding or task.inputs)
    built = SequenceModel.of(task, recurrent, embedding)
    try:
        _start(built, configuration, problem)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError("start.name", configuration.start.name, str(error)) from None
    return built


def check_sizes(configuration: Configuration, problem: Problem, device: torch.device) -> None:
    """Refuse what would not fit into the machine's memory, before it is taken: a lower bound, not an estimate.

    Raises:
        ConfigurationError: the weights and their gradients, or a batch with the states that its backward pass needs and
            its outputs, are larger; steps with parameters of their own are not as many as the task's; a bidirectional
            model of a task whose answers are its next inputs; an embedding of inputs that are no symbols.
    """
    model, task, size = configuration.model, problem.training, 8 if configuration.precision == "64-true" else 4
    own = model.options.get("own_steps")
    if own is not None and (task.lengths_vary or own != problem.length):
        steps = "varying numbers of" if task.lengths_vary else problem.length
        raise ConfigurationError("model.own_steps", own, f"the task has {steps} steps, each of which is one of its own")
    there, hidden = _memory(device), model["hidden"]
    if model["bidirectional"] and task.predicts_next:
        allowed = "the task is to predict the next step, which the other direction has read"
        raise ConfigurationError("model.bidirectional", True, allowed)
    if model["embedding"] is not None and not task.symbolic:
        allowed = f"the inputs of {task.name} are numbers, and an embedding is of symbols"
        raise ConfigurationError("model.embedding", model["embedding"], allowed)
    weights = 2 * size * _parameters(model, model["embedding"] or task.inputs)
    if weights > there:
        allowed = f"its weights and their gradients take {_gigabytes(weights)} of {_gigabytes(there)}"
        raise ConfigurationError("model.hidden", hidden, allowed)
    directions = 2 if model["bidirectional"] else 1
    weights += 2 * size * task.outputs * (directions * hidden + 1)
    if weights > there:
        need = f"the weights and their gradients take {_gigabytes(weights)} of {_gigabytes(there)}"
        allowed = f"with a readout of {counted(task.outputs, 'output')} {need}"
        raise ConfigurationError("task.name", configuration.task.name, allowed)
    states = problem.length * hidden * model["layers"] * directions
    outputs = task.outputs * (problem.length if task.per_step else 1)
    batch = size * configuration.batch_size * (task[0][0].numel() + states + outputs)
    if batch > there:
        allowed = f"a batch with its states and outputs takes {_gigabytes(batch)} of {_gigabytes(there)}"
        raise ConfigurationError("batch_size", configuration.batch_size, allowed)


def _parameters(model: Choice, inputs: int) -> int:
    """How many numbers the recurrent layers have."""
    if model.name == "spectral":  # factorised where it is made, so it has to be there
        return 2 * model["layers"] * int(model["hidden"]) ** 2 * (2 if model["bidirectional"] else 1)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _recurrent(model, inputs).parameters())


def _memory(device: torch.device) -> int:
    """Bytes of the device, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _recurrent(model: Choice, inputs: int) -> nn.Module:
    sizes = (inputs, model["hidden"], model["layers"])
    read = ("hidden", "layers", "embedding", "own_steps", "bidirectional")
    options = {name: value for name, value in model.options.items() if name not in read}
    if model["bidirectional"]:
        options["bidirectional"] = True
    if model.name.startswith("torch.nn."):
        layer: nn.Module = getattr(nn, model.name.removeprefix("torch.nn."))(*sizes, **options)
        return layer
    if model.name == "spectral":
        return SpectralRNN(*sizes, **options)
    of_cell = cell_options(model)
    of_layer = {name: value for name, value in options.items() if name not in of_cell}
    cell, steps = cell_named(model.name, of_cell), model["own_steps"]
    if steps is None:
        return RNN(cell, *sizes, **of_layer)
    return OwnSteps([RNN(cell, *sizes, **of_layer) for _ in range(steps)])


def _start(model: SequenceModel, configuration: Configuration, problem: Problem) -> nn.Module:
    start, recurrent = configuration.start, model.recurrent
    if start.name == "torch":
        return recurrent
    if start.name in PRESETS:
        hidden, inputs = int(recurrent.hidden_size), int(recurrent.input_size)  # type: ignore[arg-type]
        return init.apply_(recurrent, preset(start.name, hidden, inputs))
    if start.name == "uniform":
        return _uniform_(model, start["bound"])
    if start.name == "scaled":
        return _scaled_(recurrent, start["gain"])
    if start.name == "held":
        return _held_(recurrent, start["gain"])
    if start.name == "spec":
        return init.apply_(recurrent, spec_of_start(configuration.model, start))
    if start.name == "gradient_flossing":
        batch = _first_batch(model, problem.training)
        return init.gradient_flossing_(recurrent, batch=batch, updates=start["updates"])
    if start.name in (*TIMED, "critical", "isometric"):
        length = problem.length if start["length"] is None else start["length"]
        if start.name in TIMED:
            return _named(start.name)(recurrent, length)
        if start.name == "critical" and not isinstance(recurrent, OwnSteps):
            return init.critical_(recurrent, length, batch=_first_batch(model, problem.training))
        # Steps with weights of their own would be measured one by one, each by another run.
        draw = init.critical_ if start.name == "critical" else init.isometric_
        return draw(recurrent, length, input=Input.of(_first_inputs(model, problem.training)[0]))
    return _named(start.name)(recurrent)


def _named(start: str) -> Callable[..., nn.Module]:
    """The function of `isornn.init` that draws it."""
    return cast(Callable[..., nn.Module], getattr(init, f"{start}_"))


@torch.no_grad()
def _uniform_(model: nn.Module, bound: float) -> nn.Module:
    for parameter in model.parameters():
        parameter.uniform_(-bound, bound)
    return model


@torch.no_grad()
def _scaled_(recurrent: nn.Module, gain: float) -> nn.Module:
    for name in _recurrent_matrices(recurrent):
        if spectral.is_spectral(recurrent, name):
            setattr(recurrent, name, gain * getattr(recurrent, name))
        else:
            getattr(recurrent, name).mul_(gain)
    for name, parameter in recurrent.named_parameters():
        if name.startswith("bias"):
            parameter.zero_()
    return recurrent


@torch.no_grad()
def _held_(recurrent: nn.Module, gain: float) -> nn.Module:
    for name in _recurrent_matrices(recurrent):
        _, (_, p, _) = spectral.factors(recurrent, name)
        p.fill_(gain)
        p.requires_grad_(False)
    return recurrent


def _recurrent_matrices(recurrent: nn.Module) -> list[str]:
    layers = range(int(recurrent.num_layers))  # type: ignore[arg-type]
    names = (f"weight_hh_l{layer}{direction}" for layer in layers for direction in ("", "_reverse"))
    return [name for name in names if hasattr(recurrent, name)]


@torch.no_grad()
def _first_inputs(model: SequenceModel, task: Task) -> tuple[Tensor, Tensor | None]:
    """What the recurrent module gets of a task's first items, (T, B, D), and their lengths where they vary."""
    x, _, *lengths = next(iter(loader(task, task.columns or FIRST_ITEMS)))
    return model.encoder(x), lengths[0] if lengths else None


def _first_batch(model: SequenceModel, task: Task) -> Tensor | PackedSequence:
    """The same as the module is called with."""
    x, lengths = _first_inputs(model, task)
    return x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)


def build_optimiser(optimiser: Choice, model: nn.Module) -> Optimizer:
    """Of all parameters; geodesic: bases and spectra by their own steps and rates, the rest by ``rest``."""
    if optimiser.name != "geodesic":
        return _plain(optimiser.name, model.parameters(), optimiser.options)
    rate, of_bases, of_spectra = (optimiser[name] for name in ("rate", "geodesic_rate", "spectrum_rate"))
    of_spectra = rate if of_spectra is None else of_spectra
    groups = spectral.groups(model)
    return GeodesicSGD(
        [_to_rest(group, of_spectra) for group in groups] if optimiser["spectrum"] == "rest" else groups,
        lr=of_spectra,
        geodesic_lr=rate if of_bases is None else of_bases,
        momentum=optimiser["momentum"],
        rest=lambda groups: _plain(optimiser["rest"], groups, {"rate": rate}),
    )


def _to_rest(group: dict[str, Any], rate: float) -> dict[str, Any]:
    """A spectrum as a group of the rest's optimiser, at ``rate`` over 2m as eq. 11 of Vorontsov et al. has it."""
    if group["kind"] != "spectrum":
        return group
    # Without effect, so without gradient, at margin 0.
    factor = 2 * group["margin"] if group["margin"] else 1.0
    return {"params": group["params"], "kind": "rest", "lr": rate / factor}


def _plain(name: str, parameters: Any, options: Mapping[str, Any]) -> Optimizer:
    kind: Any = {"sgd": SGD, "rmsprop": RMSprop, "adam": Adam}[name]
    made: Optimizer = kind(parameters, **{"lr" if key == "rate" else key: value for key, value in options.items()})
    return made


def build_schedule(schedule: Choice, optimizer: Optimizer, updates: int) -> LRScheduler | ReduceLROnPlateau | None:
    """torch's own; ``None`` for a constant rate."""
    match schedule.name:
        case "exponential":
            return ExponentialLR(optimizer, schedule["factor"])
        case "step":
            return StepLR(optimizer, schedule["every"], schedule["factor"])
        case "milestones":
            return MultiStepLR(optimizer, schedule["at"], schedule["factor"])
        case "cosine":
            return CosineAnnealingLR(optimizer, updates)
        case "plateau":
            return ReduceLROnPlateau(optimizer, factor=schedule["factor"], patience=schedule["patience"])
    return None


def build_penalty(penalty: Choice | None, model: SequenceModel) -> Callable[[], Tensor] | None:
    """What is added to the loss: ``strength`` times the soft constraint, summed over all layers' recurrent matrices.

    Where a constraint has weight decay beside it, ``decay`` times that as well.

    Raises:
        ConfigurationError: the model has no recurrent matrices.
    """
    if penalty is None:
        return None
    recurrent, parts = model.recurrent, [(penalty.name, penalty["strength"])]
    matrices = _recurrent_matrices(recurrent)
    if not matrices:
        raise ConfigurationError("penalty.name", penalty.name, "the model has no recurrent matrices")
    if penalty.options.get("decay") is not None:
        parts.append(("decay", penalty["decay"]))
    measures = [(getattr(soft_constraints, name), strength) for name, strength in parts]
    return lambda: torch.stack(
        [strength * measure(recurrent, name) for measure, strength in measures for name in matrices]
    ).sum()
