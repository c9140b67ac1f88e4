"""What findings suggest where no function of ours can do it: lines for the user's own code, and their gist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isornn.formatting import counted


@dataclass(frozen=True)
class Advice:
    """Python that the user has to insert; ``why`` says why `fix_` cannot, and what to do instead."""

    code: str
    why: str


def clip() -> Advice:
    """Clip gradients before every step of the optimiser."""
    return Advice(
        """import torch

# Between loss.backward() and optimizer.step():
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)""",
        "it looks trained; clip its gradients with torch.nn.utils.clip_grad_norm_",
    )


def flush() -> Advice:
    """Denormal numbers replaced by 0, from the start of the program."""
    return Advice(
        """import torch

# At the start of the program, before torch starts threads; an initialisation that
# keeps gradients removes the cause.
torch.set_flush_denormal(True)""",
        "it is a mode of torch, not of the model; call torch.set_flush_denormal(True) at the start of the program",
    )


def pack(batch_first: bool | None) -> Advice:
    """Sequences with their true lengths; ``batch_first`` is ``None`` for a cell stepped by hand."""
    what = "pack the batch with torch.nn.utils.rnn.pack_padded_sequence"
    code = f'''from torch.nn.utils.rnn import pack_padded_sequence

def packed(batch, lengths):
    """In place of the recurrent layer's input; lengths are the sequences' own."""
    return pack_padded_sequence(
        batch, lengths, batch_first={batch_first}, enforce_sorted=False
    )'''
    if batch_first is None:
        what = "keep each sequence's last state with torch.where"
        code = '''import torch

def kept_at_end(time, lengths, new, old):
    """In the loop over time: ``state = kept_at_end(t, lengths, new_state, state)``."""
    return torch.where((time < lengths).unsqueeze(-1), new, old)'''
    return Advice(code, f"it is in the data; {what}")


def normalise() -> Advice:
    """Inputs with mean 0 and standard deviation 1."""
    return Advice(
        '''def normalised(batch, training):
    """In place of ``batch``; ``training`` holds the inputs of the training set."""
    rows = training.reshape(-1, training.shape[-1])
    scale = rows.std(0)
    return (batch - rows.mean(0)) / scale.where(scale > 0, 1.0)''',
        "it is in the data; subtract the mean of the training inputs and divide by their standard deviation",
    )


def compress() -> Advice:
    """Inputs whose rare values are brought closer, by their logarithm."""
    return Advice(
        '''import torch

def compressed(batch, training):
    """In place of ``batch``; ``training`` holds the inputs of the training set."""
    rows = training.reshape(-1, training.shape[-1])
    middle = rows.median(0).values
    usual = (rows - middle).abs().median(0).values
    return torch.asinh((batch - middle) / usual.where(usual > 0, 1.0))''',
        "it is in the data; take logarithms of what has many scales (torch.asinh, where it has both signs), or clip it",
    )


def normalise_within(features: int) -> Advice:
    """What the model computes for a layer, normalised."""
    return Advice(
        f"""from torch import nn

# Where the data is normalised already: in the model, ahead of the recurrent layer.
norm = nn.LayerNorm({features})""",
        "it is in what the model computes ahead of the layer; normalise the data, or that, as with a LayerNorm",
    )


def normalise_state() -> Advice:
    """An initial state of the size of the layer's own states."""
    return Advice(
        """import torch

# In forward, where the initial state is computed:
state = torch.tanh(state)""",
        "it is in what the model computes the initial state from; normalise that, or use torch.tanh(state)",
    )


def use() -> Advice:
    """A result that reaches the loss."""
    return Advice(
        """# In forward: compute the result from what the recurrent layer returns, without
# .detach() or argmax.
output, state = recurrent(x)
return head(output[:, -1])""",
        "it is in the model's forward; compute its result from what the layer returns, or remove the layer",
    )


def nonzero_gradient() -> Advice:
    """Whatever makes a gradient exactly 0."""
    return Advice(
        """# In forward, between the layer's results and the model's output: is padding read in
# their place (pad_packed_sequence with total_length), is a ReLU 0 for all of the
# batch, or a factor or mask 0?""",
        "it is in the model's forward; find what is 0 for the whole batch: padding, a ReLU, a factor, a mask",
    )


def reach() -> Advice:
    """A batch that the layer gets to see."""
    return Advice(
        """# Diagnose the model on a batch that calls the layer, or in the way that training calls it:
# batch=lambda model: model.train()(x).
isornn.diagnose(model, other_batch)""",
        "the batch does not reach it in eval mode; use one that does, or remove the layer if none does in training and "
        "nothing else reads its weights",
    )


def carry() -> Advice:
    """States passed on from call to call."""
    return Advice(
        """state = None
for part in parts:
    output, state = recurrent(part, state)""",
        "it is in the model's forward; pass each call the state that the one before returned",
    )


def state_order() -> Advice:
    """An LSTM's states in their order."""
    return Advice(
        """h, c = cell(x, (h, c))  # of a layer: output, (h, c) = lstm(x, (h, c))""",
        "it is in the model's forward; an LSTM takes and returns (h, c), in this order",
    )


def batch_first(value: bool) -> Advice:
    """Sequences along the axis that the layer takes for time, with that value of its argument."""
    return Advice(
        f"""# Where the layer is made:
recurrent.batch_first = {value}""",
        f"it is in the model; make the layer with batch_first={value}, or give it inputs "
        f"({'T, B, D' if value else 'B, T, D'})",
    )


def transpose(shape: Sequence[int], wanted: Sequence[int]) -> Advice:
    """An input (sizes ``shape``) with its axes in another order, but for those of size 1."""
    left, order = list(range(len(shape))), []
    for size in wanted:
        axis = next((axis for axis in left if shape[axis] == size), None)
        if axis is not None:
            order.append(axis)
            left.remove(axis)
    order += left
    permuted = f"permute({', '.join(map(str, order))})"
    if [shape[axis] for axis in order] != list(wanted):
        permuted += f".reshape({', '.join(map(str, wanted))})"
    return Advice(
        f"""# In forward, in place of view or reshape to {tuple(wanted)}:
x = x.{permuted}""",
        f"it is in the model's forward; exchange axes by {permuted}, not by view or reshape",
    )


def transpose_result(what: str) -> Advice:
    """An output or a state with the batch ahead, before it is reshaped."""
    name = "output" if what == "output" else "state"
    return Advice(
        f"""# In forward, before {name} is reshaped by view, reshape or flatten:
{name} = {name}.transpose(0, 1)""",
        f"it is in the model's forward; {name}.transpose(0, 1) before the {what} is reshaped",
    )


def last_states() -> Advice:
    """The result after the last step of each sequence and direction."""
    return Advice(
        """import torch

# In forward, in place of output[:, -1]; of an LSTM state is (h, c), of a GRU h:
output, state = recurrent(x)
h = state[0] if isinstance(state, tuple) else state
directions = 2 if recurrent.bidirectional else 1
last = torch.cat(list(h[-directions:]), -1)""",
        "it is in the model's forward; read the last layer's last states",
    )


def detach(held: str | None) -> Advice:
    """A kept state without its graph."""
    state = f"self.{held or 'state'}"
    where = f"Where {held} is set" if held else "Where the state is kept, in whatever attribute"
    return Advice(
        f"""import torch

# {where}:
state = {state}
{state} = state.detach() if torch.is_tensor(state) else tuple(part.detach() for part in state)""",
        "it is in the model's forward; keep state.detach()",
    )


def reset(held: str | None) -> Advice:
    """A state that begins anew with every batch."""
    where = "" if held else "\n# (state is the attribute that holds it)"
    return Advice(
        f"""# Before every batch that does not continue the one before, what the first
# batch begins with (.zero_() of what is a tensor from the beginning):{where}
model.{held or "state"} = None""",
        "it is in the model's forward and the order of batches; start every shuffled batch without a state",
    )


_MEDIAN_TIME = 3  # at most: that of a critical start's units, in lengths that it is drawn for


def longer_windows(window: int, median: float) -> Advice:
    """Backpropagation over as many steps as units retain, or units that retain no longer."""
    wanted = max(math.ceil(min(median, 1e9)), window + 1)
    instead = f"# Detach the state after {wanted} steps or more, not after {counted(window, 'step')}"
    shorter = window // _MEDIAN_TIME
    if shorter >= 2:  # as a start is drawn for
        instead += f""";
# or draw the layer so that most units retain no longer than that, and diagnose it for the window:
# isornn.init.critical_(model, {shorter}, batch=batch)
# isornn.diagnose(model, batch, length={window})"""
    return Advice(
        f"""{instead}
steps_between_detaches = {wanted}""",
        f"it is in the training loop; backpropagate through {wanted} steps or more",
    )
