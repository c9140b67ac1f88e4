"""torch's own tests of its recurrent layers, run against ours; how many hold, and what is refused on purpose.

    python benchmarks/torch_rnn_tests.py

Needs the package ``expecttest``, as torch's tests do. Two parts:

- the module inputs that torch ships for its tests (`torch.testing._internal.common_modules.module_db`): each call of
  nn.RNN, nn.GRU and nn.LSTM, in training and in evaluation, to ours and to torch's with the same state dict; outputs,
  last states and gradients in float64 must agree to 1e-12. Inputs that torch refuses we must refuse;
- what torch's test_nn.py asserts about these layers, written anew as `CHECKS`.
"""

from __future__ import annotations

import copy
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from table import heading, show
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from isornn import nn

OURS: dict[type, Any] = {torch.nn.RNN: nn.VanillaRNN, torch.nn.GRU: nn.GRU, torch.nn.LSTM: nn.LSTM}
REFUSED = {
    "RNNCell, GRUCell, LSTMCell": "isornn.nn has layers only; `isornn.nn.step` is one step of any cell",
    "jit.script": "deprecated by torch, knows no keyword-only arguments; torch.export, torch.jit.trace and ONNX work",
    "the types of errors": "ValueError for every bad argument, where torch has TypeError, ValueError and RuntimeError",
}
T, B, D, N = 5, 3, 4, 6


def flat(result: Any) -> list[Tensor]:
    """The tensors of outputs and states, nested or not."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result if part is not None for tensor in flat(part)]


def agree(theirs: Any, ours: Any, *args: Any, **options: Any) -> None:
    """Outputs, last states and gradients of both, with the same parameters."""
    ours.load_state_dict(theirs.state_dict())
    found = []
    for layer in (ours, theirs):
        torch.manual_seed(0)
        results = flat(layer(*args, **options))
        loss = sum(((k + 1) * value.square().sum() for k, value in enumerate(results)), torch.zeros(()))
        found.append((results, torch.autograd.grad(loss, tuple(layer.parameters()))))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def refused(call: Callable[[], object]) -> None:
    """The call must raise ValueError."""
    try:
        call()
    except ValueError:
        return
    raise AssertionError("not refused")


def module_inputs() -> Iterator[tuple[str, Callable[[], None]]]:
    """By name, every call of torch's module inputs."""
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

    given: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "requires_grad": False}
    for info in module_db:
        if info.module_cls not in OURS:
            continue
        kind, ours = info.module_cls, OURS[info.module_cls]
        for training in (True, False):
            for each in info.module_inputs_func(info, training=training, **given):
                start, call = each.constructor_input, each.forward_input

                def same(
                    start: Any = start, call: Any = call, mode: bool = training, kinds: Any = (kind, ours)
                ) -> None:
                    options = {**start.kwargs, "dtype": torch.float64}
                    agree(*(made(*start.args, **options).train(mode) for made in kinds), *call.args, **call.kwargs)

                yield f"{kind.__name__} module inputs", same
            errors = info.module_error_inputs_func or (lambda *_, **__: [])
            for each in errors(info, training=training, **given):
                start, call = each.module_error_input.constructor_input, each.module_error_input.forward_input

                def wrong(each: Any = each, start: Any = start, call: Any = call, ours: Any = ours) -> None:
                    if each.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
                        refused(lambda: ours(*start.args, **start.kwargs))
                    else:
                        layer = ours(*start.args, **start.kwargs)
                        refused(lambda: layer(*call.args, **call.kwargs))

                yield f"{kind.__name__} refused inputs", wrong


def pair(kind: type, **options: Any) -> tuple[Any, Any]:
    """torch's layer and ours."""
    return tuple(made(D, N, dtype=torch.float64, **options) for made in (kind, OURS[kind]))


def sequence(*shape: int) -> Tensor:
    return torch.randn(*(shape or (T, B, D)), dtype=torch.float64)


def state(kind: type, *shape: int) -> Any:
    one = torch.randn(*shape, dtype=torch.float64)
    return (one, one + 1) if kind is torch.nn.LSTM else one


def depths(kind: type) -> None:
    for layers in (1, 2, 3):
        for both in (True, False):
            for bias in (True, False):
                options = {"num_layers": layers, "bidirectional": both, "bias": bias}
                agree(*pair(kind, **options), sequence(), state(kind, layers * (1 + both), B, N))


def batch_first(kind: type) -> None:
    agree(*pair(kind, batch_first=True, bidirectional=True), sequence(B, T, D), state(kind, 2, B, N))


def unbatched(kind: type) -> None:
    agree(*pair(kind, num_layers=2), sequence(T, D), state(kind, 2, N))


def packed(kind: type) -> None:
    for lengths, ordered in (([5, 3, 1], True), ([2, 5, 2], False)):
        x = pack_padded_sequence(sequence(), torch.tensor(lengths), enforce_sorted=ordered)
        agree(*pair(kind, num_layers=2, bidirectional=True), x, state(kind, 4, B, N))


def packed_as_padded(kind: type) -> None:
    _, ours = pair(kind, bidirectional=True)
    x, lengths = sequence(), [5, 3, 1]
    padded, last = ours(x, lengths=lengths)
    out, other = ours(pack_padded_sequence(x, torch.tensor(lengths)))
    torch.testing.assert_close((pad_packed_sequence(out)[0], other), (padded, last), rtol=0, atol=1e-12)


def projections(kind: type) -> None:
    if kind is not torch.nn.LSTM:
        return
    hx = (sequence(2, B, 2), sequence(2, B, N))
    agree(*pair(kind, proj_size=2, bidirectional=True), sequence(), hx)


def dropout(kind: type) -> None:
    for share in (0.0, 0.5, 1.0):
        agree(*pair(kind, num_layers=3, dropout=share), sequence())


def dropout_changed_later(kind: type) -> None:
    both = pair(kind, num_layers=2, dropout=0.9)
    for layer in both:
        layer.dropout = 0.0
    agree(*both, sequence())


def wrong_states(kind: type) -> None:
    _, ours = pair(kind, num_layers=2)
    for shape in ((2, B + 1, N), (1, B, N), (2, B, N + 1), (2, N)):
        refused(lambda shape=shape: ours(sequence(), state(kind, *shape)))
    refused(lambda: ours(sequence(T, D), state(kind, 2, B, N)))


def wrong_inputs(kind: type) -> None:
    _, ours = pair(kind)
    for shape in ((T, B, D + 1), (0, B, D), (T, B, D, 1), (D,)):
        refused(lambda shape=shape: ours(sequence(*shape)))
    refused(lambda: ours(sequence().float()))


def wrong_arguments(kind: type) -> None:
    for wrong in (
        {"bias": "x"},
        {"batch_first": "False"},
        {"dropout": True},
        {"dropout": 1.5},
        {"num_layers": 0},
        {"num_layers": 1.0},
        {"proj_size": -1},
        {"proj_size": N},
    ):
        refused(lambda wrong=wrong: OURS[kind](D, N, **wrong))
    for sizes in ((0, N), (D, 0), (D, 2.5)):
        refused(lambda sizes=sizes: OURS[kind](*sizes))


def copies(kind: type) -> None:
    _, ours = pair(kind, num_layers=2)
    expected = ours(x := sequence())
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x), expected, rtol=0, atol=0)


def state_dicts(kind: type) -> None:
    theirs, ours = pair(kind, num_layers=2, bidirectional=True)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert [value.shape for value in theirs.state_dict().values()] == [v.shape for v in ours.state_dict().values()]
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x := sequence()), theirs(x), rtol=0, atol=1e-12)


def replaced_parameters(kind: type) -> None:
    theirs, ours = pair(kind)
    weight = torch.nn.Parameter(torch.zeros_like(ours.weight_hh_l0))
    for layer in (theirs, ours):
        layer.weight_hh_l0 = copy.deepcopy(weight)
    agree(theirs, ours, sequence())


def converted(kind: type) -> None:
    theirs, ours = pair(kind)
    for layer in (theirs, ours):
        layer.float().double()
    agree(theirs, ours, sequence())


CHECKS: tuple[Callable[[type], None], ...] = (
    depths,
    batch_first,
    unbatched,
    packed,
    packed_as_padded,
    projections,
    dropout,
    dropout_changed_later,
    wrong_states,
    wrong_inputs,
    wrong_arguments,
    copies,
    state_dicts,
    replaced_parameters,
    converted,
)


def checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check of every layer."""
    for kind in OURS:
        for check in CHECKS:
            yield check.__name__, lambda check=check, kind=kind: check(kind)


def main() -> None:
    heading("torch's tests of its recurrent layers, against ours")
    warnings.simplefilter("ignore")
    counts: dict[str, list[int]] = {}
    for name, run in (*module_inputs(), *checks()):
        count = counts.setdefault(name, [0, 0])
        torch.manual_seed(0)
        try:
            run()
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            count[1] += 1
        else:
            count[0] += 1
    show(["what", "passed", "failed"], [[name, *count] for name, count in counts.items()])
    show(["refused on purpose", "why"], [list(row) for row in REFUSED.items()])
    passed, failed = (sum(values) for values in zip(*counts.values(), strict=True))
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
