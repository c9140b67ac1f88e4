"""Checks of what a model does with its recurrent layers: results that nothing uses, states kept, dropped or cut off."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from isornn.diagnosis import advice
from isornn.diagnosis.facts import Memory
from isornn.diagnosis.finding import Check, Finding
from isornn.diagnosis.records import LayerDiagnosis, Use
from isornn.formatting import counted


class OfUse(Check):
    """A check of a module, which is reported for its first layer; what it explains it explains for all of them."""

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        if layer.use is None or layer.info.layer or layer.info.direction:
            return None
        return self.found(layer, layer.use)

    @abstractmethod
    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        """The finding, where the condition holds."""


class Unused(OfUse):
    """No gradient leads from the model's output, or from the loss where a target is given, to the module's results.

    They are dropped, detached, or used by what has no gradient, as an argmax. Frozen modules are not called, and those
    that run without gradients. Of a module of which something is read, the layers and directions of which nothing is.
    """

    kind = "unused"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        place = (layer.info.layer, layer.info.direction)
        if layer.use is None or layer.use.reached is not True or place not in layer.use.unread_places:
            return super().find(layer)
        what = "the model's output" if layer.loss is None else "the loss"
        direction = "reverse" if layer.info.direction else "forward"
        return self.finding(
            layer,
            f"No gradient leads from {what} to the results of layer {layer.info.layer}, {direction} direction, while "
            "others of the module are read: it runs, and is not trained.",
            {f"results that a gradient of {what} reaches": "0, of this layer and direction (bar: 1)"},
            advice.last_states(),
        )

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if use.reached is not False:
            return None
        what = "the model's output" if layer.loss is None else "the loss"
        return self.finding(
            layer,
            f"No gradient leads from {what} to its results, in {counted(layer.info.calls, 'call')}: it runs, and is "
            "not trained.",
            {f"results that a gradient of {what} reaches": f"0, in {counted(layer.info.calls, 'call')} (bar: 1)"},
            advice.use(),
        )


class ZeroGradient(OfUse):
    """A graph leads from the model's output to the module's results, and all gradients along it are exactly 0.

    Not looked at where a target is given, whose loss may be 0, nor where a weight of the model is 0 throughout.
    """

    kind = "zero_gradient"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not (use.reached and use.zero_gradient):
            return None
        calls = counted(layer.info.calls, "call")
        return self.finding(
            layer,
            f"The gradient of the model's output with respect to all of its results is exactly 0, in {calls}: such "
            "batches do not train it.",
            {"numbers in that gradient which are not 0": f"none, in {calls} (bar: 1)"},
            advice.nonzero_gradient(),
        )


class StateNotCarried(OfUse):
    """At least three calls start at state 0 one after the other although they read consecutive parts of one sequence.

    Consecutive: each begins in memory where the one before ends, or is one step of the same tensor. A layer that
    forgets everything between two calls has a memory of one call's steps.
    """

    kind = "state_not_carried"
    explains = frozenset({"cannot_tell"})

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if use.restarts == 0:
            return None
        steps = counted(layer.info.steps, "step")
        return self.finding(
            layer,
            f"Its state is not carried from call to call: {use.restarts} calls read consecutive parts of a sequence, "
            f"of {steps} each, and every one starts at state 0.",
            {
                "calls that start at state 0": f"{use.restarts} (bar: 3 that read consecutive parts of one tensor)",
                "steps of the longest": str(layer.info.steps),
            },
            advice.carry(),
        )


class StatesExchanged(OfUse):
    """An LSTM is called with the states in which a call ended in the wrong order: its c as h, and its h as c.

    The gates then read c, and what the forget gate retains is h.
    """

    kind = "states_exchanged"
    explains = frozenset({"cannot_tell"})

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if use.exchanged == 0:
            return None
        calls = counted(use.exchanged, "call")
        return self.finding(
            layer,
            f"h and c are exchanged from call to call: {calls} of {layer.info.calls} started from the states in which "
            "another one ended, with its c as h and its h as c.",
            {"calls that start with h and c exchanged": f"{use.exchanged} of {layer.info.calls} (bar: 1)"},
            advice.state_order(),
        )


class AlongBatch(OfUse):
    """Row k of the model's output depends on step k of the module alone, and there on its batch's last row alone.

    So it is where a batch of sequences is given to a module whose ``batch_first`` is False, and ``output[:, -1]`` read;
    or one of steps to a module whose ``batch_first`` is True, and ``output[-1]``.
    """

    kind = "along_batch"
    # Its length is then the number of sequences.
    explains = frozenset({"cannot_tell", "vanishing", "default_start", "edge_of_chaos", "truncated"})

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not use.along_batch:
            return None
        return self.finding(
            layer,
            f"It runs along the batch, not along time: batch_first is {bool(layer.info.batch_first)}, its "
            f"{layer.info.steps} steps are the rows of the model's output, and each is computed from the rows before "
            "it.",
            {
                "steps that an output's row depends on": f"1 of {layer.info.steps}, its own number (bar: any other)",
                "rows of the batch read there": f"1 of {layer.info.sequences}, the last (bar: any other)",
            },
            advice.batch_first(not layer.info.batch_first),
        )


class AxesMixed(OfUse):
    """Axes are exchanged by a reshape (view, reshape, flatten), which leaves all numbers in their order in memory.

    The input is a view of a tensor that has the same sizes in another order; or a row of the model's output is computed
    from what would be its own sequence's output or last state, were their first two axes the other way round.
    """

    kind = "axes_mixed"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        wrong = use.reshaped
        if wrong is None:
            return None
        if wrong.what == "input":
            sentence = (
                f"Its input {wrong.taken_for} is a tensor {wrong.shape} reshaped. That leaves the numbers in their "
                "order in memory and exchanges no axes, so that its rows are mixed."
            )
            evidence = {"shape of the tensor that the input is a view of": f"{wrong.shape} (bar: sizes in this order)"}
            return self.finding(layer, sentence, evidence, advice.transpose(wrong.shape, wrong.taken_for))
        first, second = wrong.taken_for
        sentence = (
            f"Its {wrong.what} {wrong.shape} is reshaped as if it were ({first}, {second}, ...), which mixes "
            f"sequences: row 0 of the model's output is computed from sequences {_listed(wrong.read)}."
        )
        evidence = {"sequences that row 0 of the model's output reads": f"{_listed(wrong.read)} (bar: 0 alone)"}
        return self.finding(layer, sentence, evidence, advice.transpose_result(wrong.what))


def _listed(numbers: Sequence[int], most: int = 5) -> str:
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


class ShorterUnread(OfUse):
    """Of all sequences shorter than the longest nothing is read, of the longest the output at their last step alone.

    So it is where the last step of padded outputs is read, which are 0 behind a sequence's end.
    """

    kind = "shorter_unread"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not use.unread:
            return None
        count = layer.info.sequences
        return self.finding(
            layer,
            f"Of {use.unread} of {count} sequences nothing is read: those shorter than the longest, as where the last "
            "step of padded outputs is read, which are 0 behind a sequence's end.",
            {"sequences without a gradient": f"{use.unread} of {count}, all shorter than the longest (bar: 0)"},
            advice.last_states(),
        )


class ReverseAtStart(OfUse):
    """Of the last layer's reverse direction only the output at the sequences' last step is read.

    It has then read that one step; the result of its whole run is at step 0, and in the last state.
    """

    kind = "reverse_at_start"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not use.reverse_at_start:
            return None
        return self.finding(
            layer,
            "Of its reverse direction only the output at the last step of the sequences is read, where it has read one "
            f"step of {layer.info.steps}; the output after all steps is at step 0, and in the last state.",
            {"steps read by the reverse direction": f"1 of {layer.info.steps} (bar: 2)"},
            advice.last_states(),
        )


class ForwardAtStart(OfUse):
    """Of the last layer's forward direction only the output at the first step is read.

    It has then read that one step; so it is with ``output[:, 0]``, which in a transformer has read all.
    """

    kind = "forward_at_start"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not use.forward_at_start:
            return None
        return self.finding(
            layer,
            "Of its forward direction only the output at the first step is read, where it has read one step of "
            f"{layer.info.steps}; the output after all steps is at the last one, and in the last state.",
            {"steps read by the forward direction": f"1 of {layer.info.steps} (bar: 2)"},
            advice.last_states(),
        )


class NotDetached(OfUse):
    """A second run on the same batch starts from the state in which the first ended, which still has its graph."""

    kind = "not_detached"
    explains = frozenset({"state_carried"})

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not (use.carried and use.attached):
            return None
        return self.finding(
            layer,
            "The state that it keeps from one batch to the next is not detached by the model: the graph of run 2 goes "
            "on into that of run 1, so backpropagation fails, or grows by a batch with every batch.",
            {"runs that the state's graph reaches back to": "2 of 2 (bar: 1)"},
            advice.detach(use.held),
        )


class StateCarried(OfUse):
    """A second run on the same batch starts from the state in which the first ended: results depend on what ran before.

    That is right where every batch continues the sequences of the one before, row by row, and wrong where batches are
    shuffled, which one batch does not show.
    """

    kind = "state_carried"

    def found(self, layer: LayerDiagnosis, use: Use) -> Finding | None:
        if not use.carried:
            return None
        return self.finding(
            layer,
            "Its state is carried from one batch to the next: run 2 on the same batch starts from the state in which "
            "run 1 ended. That is right only where batches are not shuffled and each continues the one before, row by "
            "row.",
            {"runs that start from the state of the one before": "1 of 1 (bar: 0 where batches are shuffled)"},
            advice.reset(use.held),
        )


class Truncated(Check):
    """Most units retain longer than the steps that backpropagation sees: gradients end before their memory does.

    Where a detached state cuts a sequence, or is carried from batch to batch, into parts shorter than the length to
    bridge; more than half of the units of a retained state have time constants above the longest part.
    """

    kind = "truncated"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        use, window = layer.use, 0
        if use is not None and (len(use.windows) > 1 or (use.carried and not use.attached)):
            window = max(use.windows)
        if not 0 < window < layer.length:
            return None
        memory = max((layer.memory, *layer.memory.others), key=lambda one: retaining(one, window))
        share, median = retaining(memory, window), median_time(memory)
        if share <= MOST_RETAINING:
            return None
        return self.finding(
            layer,
            truncated(memory, window),
            {
                "steps from one detached state to the next": f"at most {window}",
                f"units of {memory.state} with a time constant above {window} steps": f"{share:.1%} (bar: "
                f"{MOST_RETAINING:.0%})",
                "median time constant in steps": f"{median:.4g}",
            },
            advice.longer_windows(window, median),
        )


MOST_RETAINING = 0.5


def retaining(memory: Memory, window: int) -> float:
    """Share of the units with a time constant above so many steps; 0 without a gate."""
    if memory.time_constants is None:
        return 0.0
    return float((memory.time_constants > window).double().mean())


def median_time(memory: Memory) -> float:
    """Median time constant over units, in steps; 0 without a gate."""
    return 0.0 if memory.time_constants is None else float(memory.time_constants.median())


def truncated(memory: Memory, window: int) -> str:
    """The sentence, which a monitor has too."""
    return (
        f"Backpropagation is truncated to {counted(window, 'step')}, shorter than the memory: "
        f"{retaining(memory, window):.0%} of the units have a time constant above that (median "
        f"{median_time(memory):.3g} steps), so what they retain is not trained."
    )
