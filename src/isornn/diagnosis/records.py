"""What a diagnosis measured, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isornn.diagnosis.denormals import Denormals
from isornn.diagnosis.gates import GateActivity, Memory
from isornn.diagnosis.inputs import InputFacts
from isornn.diagnosis.jacobians import JacobianAt, Lyapunov
from isornn.diagnosis.moments import StateMoments
from isornn.diagnosis.predicted import Predicted
from isornn.diagnosis.profiles import Profile
from isornn.diagnosis.replaying import Check
from isornn.diagnosis.weights import WeightFacts


def layer_name(module: str, kind: str, layer: int, direction: int) -> str:
    """What a layer and direction of a module is called; the model itself goes by its class.

    >>> layer_name("encoder.rnn", "LSTM", 1, 1), layer_name("", "GRUCell", 0, 0)
    ('encoder.rnn l1_reverse', 'GRUCell')
    """
    own = "" if kind.endswith("Cell") else f" l{layer}" + ("_reverse" if direction else "")
    return (module or kind) + own


@dataclass(frozen=True)
class Place:
    """Which layer it is.

    Args:
        module: dotted name of its module, as ``model.named_modules`` has it; empty where the model itself is it.
        kind: the module's class: ``"LSTM"``, ``"GRUCell"``.
        layer, direction: from 0; direction 1 is the reverse.
        cell, options: the cell by its name, one of the user's own by ``package.module:Class``, and those options of it
            that are not its defaults.
        inputs, hidden, projection: D, N, and P or ``None``.
        bias, batch_first, dropout: the module's options; ``batch_first`` is ``None`` for a cell stepped by hand.
        parametrised: whether a parametrisation computes its weights.
        dtype, device: of its weights.
        calls: how often the module was called in the run.
        chains: into how many separate sequences those calls went on; the longest is measured.
        sequences, steps: B and the largest length in it.
        mean_steps: mean length of its sequences.
        packed: whether sequences had lengths of their own.
    """

    module: str
    kind: str
    layer: int
    direction: int
    cell: str
    options: Mapping[str, Any]
    inputs: int
    hidden: int
    projection: int | None
    bias: bool
    batch_first: bool | None
    dropout: float
    parametrised: bool
    dtype: str
    device: str
    calls: int
    chains: int
    sequences: int
    steps: int
    mean_steps: float
    packed: bool

    @property
    def name(self) -> str:
        """``encoder.rnn l1_reverse``."""
        return layer_name(self.module, self.kind, self.layer, self.direction)

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        plain = {name: isinstance(value, int | float | str) for name, value in self.options.items()}
        options = {name: value if plain[name] else repr(value) for name, value in self.options.items()}
        return {"name": self.name, **vars(self), "options": options}


@dataclass(frozen=True)
class LayerDiagnosis:
    """All that was measured of one layer and direction, in its own order of steps: a reverse one begins at the end.

    Args:
        place: which layer.
        check: how well the replay that all is measured on gives what the module gave.
        inputs: what it heard.
        weights: its tensors.
        gates: by gate, where the gates stand.
        memory: time constants of the retained state, beside ``length``.
        moments: by state, over time.
        forward: how fast two nearby states come together.
        backward: gradient of a random combination of the layer's own last output with respect to its earlier states.
        loss: gradient of the user's loss with respect to the layer's states, through the whole model; lags count back
            from the sequence's end. ``None`` without a target. Where the loss reads many steps its gradient comes in
            all along, and the slope says nothing of what came back from the end.
        loss_steps: share of the steps at which the gradient of the loss enters the module's output directly; ``None``
            without a target, and where a sequence was made by several calls: there each call's gradient has in it what
            comes from the later ones.
        jacobians: singular values of one step at several times; empty where states are wider than 4096.
        lyapunov: the leading exponents.
        predicted: what the theory expects of a layer with these hyper-parameters.
        denormals: of its module's pass; ``None`` where there are none, or the device computes with them at full speed.
    """

    place: Place
    check: Check
    inputs: InputFacts
    weights: WeightFacts
    gates: Mapping[str, GateActivity]
    memory: Memory
    moments: Mapping[str, StateMoments]
    forward: Profile
    backward: Profile
    loss: Profile | None
    loss_steps: float | None
    jacobians: tuple[JacobianAt, ...]
    lyapunov: Lyapunov
    predicted: Predicted
    denormals: Denormals | None = None

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what does not exist is null, and a single number's reason stands beside it."""
        return {
            "place": self.place.to_json(),
            "check": self.check.to_json(),
            "inputs": self.inputs.to_json(),
            "weights": self.weights.to_json(),
            "gates": {name: gate.to_json() for name, gate in self.gates.items()},
            "memory": self.memory.to_json(),
            "moments": {name: moments.to_json() for name, moments in self.moments.items()},
            "forward": self.forward.to_json(),
            "backward": self.backward.to_json(),
            "loss": None if self.loss is None else self.loss.to_json(),
            "loss_steps": self.loss_steps,
            "jacobians": [jacobian.to_json() for jacobian in self.jacobians],
            "lyapunov": self.lyapunov.to_json(),
            "predicted": self.predicted.to_json(),
            "denormals": None if self.denormals is None else self.denormals.to_json(),
        }


@dataclass(frozen=True)
class Unmeasured:
    """A recurrent module of which nothing could be measured, and why."""

    module: str
    kind: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """One JSON object."""
        return dict(vars(self))


@dataclass(frozen=True)
class Diagnosis:
    """What `measure` found.

    Args:
        model: the class of the model.
        length: the number of steps to bridge: as given, or the steps of the longest sequence.
        layers: in the order of ``model.named_modules``, then by layer and direction.
        unmeasured: recurrent modules that were not called, or could not be replayed.
        loss: its value on the batch, where a target was given.
    """

    model: str
    length: int
    layers: tuple[LayerDiagnosis, ...]
    unmeasured: tuple[Unmeasured, ...]
    loss: float | None

    def to_json(self) -> dict[str, Any]:
        """One JSON object without NaN or infinity."""
        return {
            "model": self.model,
            "length": self.length,
            "layers": [layer.to_json() for layer in self.layers],
            "unmeasured": [module.to_json() for module in self.unmeasured],
            "loss": self.loss,
        }
