"""Python that mends: each runs as it stands where ``model`` and ``length`` are known."""

from __future__ import annotations

from collections.abc import Sequence

from isornn.diagnosis.illnesses.starts import start_of_layer
from isornn.diagnosis.records import LayerDiagnosis, Place
from isornn.nn.rnn import suffix


def restart(layer: LayerDiagnosis) -> str:
    """The start that bridges ``length``; a cell without gates keeps by orthogonal matrices, with relu the identity."""
    place, module = layer.place, _expression(layer.place.module)
    notes = []
    if start_of_layer(layer) is None:
        notes.append("# It looks trained; this throws away what it has learnt: train it again.")
    if place.parametrised:
        notes.append("# Its weights are parametrised: do this before they are.")
    if layer.memory.gate is not None and not place.bias:
        notes.append("# Its gates have no biases to be held open by: build it with bias=True.")
    is_relu = place.cell == "vanilla" and place.options.get("nonlinearity") == "relu"
    line = f"isornn.init.identity_({module})" if is_relu else f"isornn.init.critical_({module}, length)"
    return "\n".join(["import isornn", "", *notes, line])


def clip() -> str:
    """What can be done while training, before every step of the optimiser."""
    return "\n".join(
        [
            "import torch",
            "",
            "# Between loss.backward() and optimizer.step():",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ]
    )


def flush() -> str:
    """Denormal numbers replaced by 0, from the start of the program."""
    return "\n".join(
        [
            "import torch",
            "",
            "# At the start of the program, before torch starts threads; a start that keeps gradients ends the cause.",
            "torch.set_flush_denormal(True)",
        ]
    )


def orthogonal_by_gate(layer: LayerDiagnosis) -> str:
    """Each gate's own block drawn again."""
    module, name = _expression(layer.place.module), f"weight_hh{_suffix(layer.place)}"
    if layer.place.parametrised:
        return "\n".join(
            [
                "import isornn",
                "import torch",
                "",
                f"torch.nn.utils.parametrize.remove_parametrizations({module}, {name!r})",
                f"isornn.nn.parametrize_spectral_({module}, {name!r}, margin=0.0)  # by gate; new parameters",
            ]
        )
    return "\n".join(
        [
            "import torch",
            "",
            f"for matrix in {module}.{name}.data.split({layer.place.hidden}):  # one gate each",
            "    torch.nn.init.orthogonal_(matrix)",
        ]
    )


def bias_once(layer: LayerDiagnosis, gates: Sequence[str]) -> str:
    """The second of two biases that add set to 0."""
    place = layer.place
    # bias_hh stacks the gates that have a recurrent matrix, in the cell's order.
    stack = [name for name, gate in layer.weights.gates.items() if len(gate.singular_values) > 0]
    name = f"{_expression(place.module)}.bias_hh{_suffix(place)}"
    lines = []
    for gate in gates:
        start = stack.index(gate) * place.hidden
        lines.append(f"{name}.data[{start}:{start + place.hidden}] = 0  # gate {gate}: bias_ih has it")
    return "\n".join(lines)


def pack(place: Place) -> str:
    """Sequences with their true lengths."""
    if place.batch_first is None:
        return "\n".join(
            [
                "import torch",
                "",
                "def kept_at_end(time, lengths, new, old):",
                '    """In the loop over time: ``state = kept_at_end(t, lengths, new_state, state)``."""',
                "    return torch.where((time < lengths).unsqueeze(-1), new, old)",
            ]
        )
    return "\n".join(
        [
            "from torch.nn.utils.rnn import pack_padded_sequence",
            "",
            "def packed(batch, lengths):",
            '    """Give the recurrent layer this in place of its input, with each sequence\'s true length."""',
            f"    return pack_padded_sequence(batch, lengths, batch_first={place.batch_first}, enforce_sorted=False)",
        ]
    )


def normalise() -> str:
    """Inputs with mean 0 and standard deviation 1."""
    return "\n".join(
        [
            "def normalised(batch, training):",
            '    """Give the model this in place of ``batch``; ``training`` holds the inputs it is trained on."""',
            "    rows = training.reshape(-1, training.shape[-1])",
            "    scale = rows.std(0)",
            "    return (batch - rows.mean(0)) / scale.where(scale > 0, 1.0)",
        ]
    )


def _suffix(place: Place) -> str:
    return "" if place.kind.endswith("Cell") else suffix(place.layer, place.direction)


def _expression(module: str) -> str:
    """Python that gives a module by its dotted name, from ``model``.

    >>> _expression("encoder.rnn"), _expression("1.rnn"), _expression("")
    ('model.encoder.rnn', "model.get_submodule('1.rnn')", 'model')
    """
    if not module:
        return "model"
    plain = all(part.isidentifier() for part in module.split("."))
    return f"model.{module}" if plain else f"model.get_submodule({module!r})"
