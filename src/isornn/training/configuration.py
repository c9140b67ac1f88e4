"""What one training run is: a frozen record, read from a mapping such as a TOML file's, with a hash as its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from dataclasses import Field as DataclassField
from typing import Any

from isornn.cells import CELLS, FURTHER_CELLS, Cell, OptionError, Spec, SpecError, cell_named
from isornn.cells.catalogue import OF_TORCH, kind_named, without_options
from isornn.cells.spec_json import listed
from isornn.cells.starts import PRESETS, TIMED
from isornn.cells.starts import STARTS as NAMED_STARTS
from isornn.training.fields import (
    NEEDED,
    ConfigurationError,
    Field,
    anything,
    flag,
    number,
    one_of,
    only_true,
    positive,
    read_fields,
    seed,
    whole,
)
from isornn.training.problems import LONGEST, PROBLEMS

Fields = Mapping[str, Field]

_TORCH = {
    "torch.nn.RNN": {"nonlinearity": one_of("tanh", "relu", default="tanh")},
    "torch.nn.LSTM": {},
    "torch.nn.GRU": {},
}
_MOST_UNITS, _MOST_LAYERS, _MOST_STEPS = 1_000_000, 1000, 10_000
_SIZES: Fields = {
    "hidden": whole(1, most=_MOST_UNITS),
    "layers": whole(1, default=1, most=_MOST_LAYERS),
    "embedding": whole(1, default=None, most=_MOST_UNITS),
    "bidirectional": only_true(),
}
_DROPOUT: Fields = {"dropout": number(0, 1, default=0.0)}
_LAYER: Fields = {
    "untied": flag(False),
    "h_detach": number(0, 1, default=0.0),
    "features": one_of("linear", "tanh", default=None),
    "before": one_of("zero", "first", default="zero"),
    "checkpoint_every": whole(1, default=None),
    "own_steps": whole(1, default=None, most=_MOST_STEPS),
}
_MARGIN: Fields = {
    "margin": number(default=None),
    "start": one_of("orthogonal", "glorot", "identity", default="orthogonal"),
}


def _cell_options(kind: type[Cell]) -> Fields:
    """The cell's own; it checks them itself."""
    return {
        option.name: anything(f"it must be an option of {kind.name}", _default(option))
        for option in fields(kind)
        if option.init
    }


def _default(option: DataclassField[Any]) -> Any:
    if option.default_factory is not MISSING:
        return listed(option.default_factory())
    return NEEDED if option.default is MISSING else listed(option.default)


_OF_A_LAYER: Fields = {**_SIZES, **_DROPOUT, **_LAYER}
CELL_OPTIONS: Mapping[str, Fields] = {name: _cell_options(kind) for name, kind in (CELLS | FURTHER_CELLS).items()}
"""Of each of the library's cells."""

MODELS: Mapping[str, Fields] = {
    **{name: {**_OF_A_LAYER, **options} for name, options in CELL_OPTIONS.items()},
    **{name: {**_SIZES, **_DROPOUT, **options} for name, options in _TORCH.items()},
    "spectral": {**_SIZES, **_DROPOUT, **_MARGIN, **CELL_OPTIONS["vanilla"]},
}
TASKS: Mapping[str, Fields] = {name: options for name, (options, _) in PROBLEMS.items()}
_LENGTH: Fields = {"length": number(2, LONGEST + 1, default=None)}
STARTS: Mapping[str, Fields] = {
    **{name: _LENGTH if name in TIMED else {} for name in (*NAMED_STARTS, *PRESETS)},
    "critical": _LENGTH,
    "isometric": _LENGTH,
    "gradient_flossing": {"updates": whole(1, default=500)},
    "spec": {
        "gates": anything("it must be a table of gates by name, as in a spec file", {}),
        "biases": one_of("redrawn", "fixed", default="redrawn"),
    },
    "uniform": {"bound": positive()},
    "scaled": {"gain": positive()},
    "held": {"gain": positive()},
}
_RATE: Fields = {"rate": positive()}
_MOMENTUM: Fields = {"momentum": number(0, 1, default=0.0)}
OPTIMISERS: Mapping[str, Fields] = {
    "sgd": {**_RATE, **_MOMENTUM},
    "rmsprop": {**_RATE, **_MOMENTUM, "alpha": number(0, 1, default=0.99)},
    "adam": _RATE,
    "geodesic": {
        **_RATE,
        **_MOMENTUM,
        "geodesic_rate": positive(default=None),
        "spectrum_rate": positive(default=None),
        "spectrum": one_of("sgd", "rest", default=None),
        "rest": one_of("sgd", "rmsprop", "adam", default="sgd"),
    },
}
_FACTOR: Fields = {"factor": positive()}
SCHEDULES: Mapping[str, Fields] = {
    "constant": {},
    "exponential": _FACTOR,
    "step": {**_FACTOR, "every": whole(1)},
    "milestones": {**_FACTOR, "at": anything("it must be a list of numbers of updates")},
    "cosine": {},
    "plateau": {"factor": number(0, 1), "patience": whole(0)},
}
_STRENGTH: Fields = {"strength": positive()}
_WITH_DECAY: Fields = {**_STRENGTH, "decay": positive(default=None)}
PENALTIES: Mapping[str, Fields] = {"orthogonality": _WITH_DECAY, "mean_one": _WITH_DECAY, "decay": _STRENGTH}
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


@dataclass(frozen=True)
class Choice:
    """One of several kinds, with its options: ``choice["rate"]``."""

    name: str
    options: Mapping[str, Any]

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def to_mapping(self) -> dict[str, Any]:
        """What `Configuration.from_mapping` reads it from."""
        return {"name": self.name, **{name: value for name, value in self.options.items() if value is not None}}


_CHOICES: Mapping[str, tuple[Mapping[str, Fields], Any]] = {
    "task": (TASKS, NEEDED),
    "model": (MODELS, NEEDED),
    "start": (STARTS, {"name": "torch"}),
    "optimiser": (OPTIMISERS, NEEDED),
    "schedule": (SCHEDULES, {"name": "constant"}),
}
# Absent where there is none.
_OPTIONAL: Mapping[str, Mapping[str, Fields]] = {"penalty": PENALTIES}
_FIELDS: Fields = {
    "updates": whole(1),
    "batch_size": whole(1, default=64),
    "validate_every": whole(1, default=100),
    "clip": positive(default=None),
    "seed": seed(default=0),
    "precision": one_of(*PRECISIONS, default="32-true"),
}


@dataclass(frozen=True)
class Configuration:
    """All that a run's result depends on, beside the machine.

    Each of the first six is a table with a ``name`` and that name's options (`TASKS`, `MODELS`, `STARTS`,
    `OPTIMISERS`, `SCHEDULES`, `PENALTIES`).

    Args:
        task: what is learned; ``held_out``: how many items each of the validation and test parts has.
        model: a cell of `isornn.cells` by its name, one's own by ``package.module:Class``, ``torch.nn.RNN``, ``LSTM``
            or ``GRU``, or ``spectral``, the factorised network; with ``hidden``, ``layers``, ``bidirectional``, and
            ``embedding`` for symbols (one-hot where it is absent); ``own_steps``: the number of steps, each of which
            then has parameters of its own.
        start: a start of `isornn.init`, a preset, or ``spec`` with ``gates`` as in a spec file, ``uniform``: all
            parameters, those of embedding and readout too, from U(-bound, bound), or ``scaled``: torch's, or the
            factorised matrices' own, with recurrent matrices times ``gain`` and biases 0, or ``held``: factorised
            matrices without a margin at ``gain`` times an orthogonal one, which they stay; ``length`` is the task's
            where it is absent, and ``critical`` is drawn for a batch of the task.
        optimiser: with its learning ``rate``; ``geodesic`` trains the bases and spectra of ``spectral``, each at
            its own rate where that is given, and the ``rest`` by another, by which ``spectrum`` may go too.
        schedule: torch's learning-rate schedules; they count updates, ``plateau`` validations.
        penalty: of `isornn.nn.soft_constraints`, on all recurrent matrices, added to the loss ``strength`` times;
            beside a constraint weight decay ``decay`` times, where that is given.
        updates: K.
        batch_size: B.
        validate_every: updates between validations, which are when metrics and a checkpoint are written.
        clip: the norm that the gradient is clipped at; ``None``: it is not.
        seed: of the model, the start and the batches.
        precision: Lightning Fabric's name of it.

    >>> given = {"task": {"name": "adding", "length": 50}, "model": {"name": "lstm", "hidden": 32}, "updates": 100}
    >>> configuration = Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": 1e-3}})
    >>> configuration.optimiser["rate"], configuration.batch_size, configuration.hash
    (0.001, 64, '...')
    >>> Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": -1}})
    Traceback (most recent call last):
    ...
    isornn.training.fields.ConfigurationError: optimiser.rate: -1 is not allowed; it must be a finite ...
    """

    task: Choice
    model: Choice
    start: Choice
    optimiser: Choice
    schedule: Choice
    penalty: Choice | None
    updates: int
    batch_size: int
    validate_every: int
    clip: float | None
    seed: int
    precision: str

    @staticmethod
    def from_mapping(data: Any, *, allow: Sequence[str] = ()) -> Configuration:
        """Read what `to_mapping`, or a person, has written.

        Args:
            allow: packages that a model's name may have imported; see `cell_named`.

        Raises:
            ConfigurationError: an unknown field, a value that is not allowed, one that is missing; names the field.
            CellError: the definition of a cell of one's own has a mistake.
        """
        sections = {
            name: anything("it must be a table with a name", default) for name, (_, default) in _CHOICES.items()
        }
        sections |= {name: anything("it must be a table with a name", None) for name in _OPTIONAL}
        values = read_fields("", data, {**sections, **_FIELDS})
        choices = {name: _choice(name, values[name], kinds) for name, (kinds, _) in _CHOICES.items() if name != "model"}
        choices["model"] = _model(values["model"], allow)
        choices |= {
            name: _choice(name, values[name], kinds) for name, kinds in _OPTIONAL.items() if values[name] is not None
        }
        found = Configuration(**{**values, **choices})
        _check_cell(found)
        _check_dropout(found.model)
        _check_directions(found.model)
        _check_milestones(found.schedule)
        return found

    def to_mapping(self) -> dict[str, Any]:
        """All fields, defaults included, as JSON or TOML has them; what is ``None`` is left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.to_mapping() if isinstance(value, Choice) else value
            for name, value in given.items()
            if value is not None
        }

    @property
    def hash(self) -> str:
        """16 hexadecimal digits: the beginning of SHA-256 of the mapping as JSON with sorted keys."""
        return _digits(self.to_mapping())

    @property
    def course(self) -> str:
        """As ``hash``, of all fields but ``updates``: runs that are the same as far as the shorter one goes, unless
        their schedule depends on its end."""
        return _digits({name: value for name, value in self.to_mapping().items() if name != "updates"})


def _digits(mapping: Mapping[str, Any]) -> str:
    canonical = json.dumps(mapping, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def spec_of_start(model: Choice, start: Choice) -> Spec:
    """The hyper-parameters that ``start = {name = "spec", ...}`` gives, of a cell of isornn or of torch.

    Raises:
        SpecError: as in a spec file.
    """
    if model.name in OF_TORCH:
        name, options = OF_TORCH[model.name], {key: model[key] for key in _TORCH[model.name]}
    else:
        name, options = model.name, cell_options(model)
    gates = dict(start["gates"]) if isinstance(start["gates"], Mapping) else start["gates"]
    return Spec.from_json({"cell": name, "options": options, "gates": gates, "biases": start["biases"]})


def cell_options(model: Choice) -> dict[str, Any]:
    """Those of a model's options that are its cell's."""
    kind, _ = kind_named(model.name)
    return {name: model[name] for name in _cell_options(kind)}


def _model(data: Any, allow: Sequence[str]) -> Choice:
    """The model, for which a cell of the user's own is imported, as only its class says which options it has."""
    name = data.get("name") if isinstance(data, Mapping) else None
    if not isinstance(name, str) or ":" not in name:
        return _choice("model", data, MODELS)
    try:
        return _own_model(name, data, allow)
    except OptionError as error:
        raise ConfigurationError("model", name, str(error)) from error


def _own_model(name: str, data: Mapping[str, Any], allow: Sequence[str]) -> Choice:
    """The model by its class's name, with the options that were in ``name`` among the others."""
    kind, within = kind_named(name, allow=allow)
    own = _cell_options(kind)
    for option in own:
        if option in _OF_A_LAYER:
            raise OptionError(f"options.{option}: it is a layer's too; the cell's needs another name")
    for option in within:
        if option in data:
            raise OptionError(f"options.{option}: it is given twice, in the name and beside it")
    plain = without_options(name)
    given = {**data, **{option: listed(value) for option, value in within.items()}, "name": plain}
    model = _choice("model", given, {plain: {**_OF_A_LAYER, **own}})
    cell_named(plain, cell_options(model))
    try:
        json.dumps(dict(model.options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"options: they are values of JSON ({error})") from None
    return model


def _choice(where: str, data: Any, kinds: Mapping[str, Fields]) -> Choice:
    named = one_of(*kinds)
    if not isinstance(data, Mapping):
        raise ConfigurationError(where, data, "it must be a table with a name")
    name = read_fields(where, {"name": data["name"]} if "name" in data else {}, {"name": named})["name"]
    options = read_fields(where, {key: value for key, value in data.items() if key != "name"}, kinds[name])
    return Choice(name, options)


def _check_cell(configuration: Configuration) -> None:
    """What the cells and specs check themselves, before anything is run."""
    model, start = configuration.model, configuration.start
    if model.name == "spectral" and start.name not in ("torch", "scaled", "held"):
        allowed = "it must be torch, scaled or held: model.start says how spectral starts"
        raise ConfigurationError("start.name", start.name, allowed)
    if start.name == "held" and (model.name != "spectral" or model["margin"] is not None):
        raise ConfigurationError(
            "start.name", start.name, "it must be another: held is for spectral models without a margin"
        )
    if configuration.optimiser.name == "geodesic" and model.name != "spectral":
        allowed = "it must be sgd, rmsprop or adam: geodesic is for the factorised matrices of the model spectral"
        raise ConfigurationError("optimiser.name", "geodesic", allowed)
    if model.name in CELL_OPTIONS:
        try:
            cell_named(model.name, cell_options(model))
        except OptionError as error:
            raise ConfigurationError("model", model.name, str(error)) from None
    if start.name == "spec":
        try:
            spec_of_start(model, start)
        except (SpecError, OptionError, TypeError) as error:
            raise ConfigurationError("start.gates", start["gates"], str(error)) from None


def _check_dropout(model: Choice) -> None:
    if model["dropout"] and model["layers"] == 1:
        raise ConfigurationError("model.dropout", model["dropout"], "it acts between layers, of which there is one")


def _check_directions(model: Choice) -> None:
    if model["bidirectional"] and model.options.get("own_steps") is not None:
        raise ConfigurationError("model.bidirectional", True, "steps with parameters of their own have one direction")


def _check_milestones(schedule: Choice) -> None:
    if schedule.name == "milestones":
        at = schedule["at"]
        whole_numbers = isinstance(at, list) and all(type(update) is int and update > 0 for update in at)
        # At a number given twice torch would apply the factor twice.
        if not whole_numbers or at != sorted(set(at)):
            raise ConfigurationError("schedule.at", at, "it must be a growing list of numbers of updates")
