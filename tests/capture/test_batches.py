"""What a model is called with, and what is refused: dicts, wrappers, batches that forward does not take, targets."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis import Monitor, measure
from isornn.init import ModuleError


def diagnosed(model, batch, **options):
    report = measure(model, batch, theory=False, **options)
    json.dumps(report.to_json(), allow_nan=False)
    return report


def test_a_dict_is_the_keyword_arguments_or_the_argument():
    class OfDict(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5)

        def forward(self, batch):
            return self.rnn(batch["tokens"])[0]

    class OfKeywords(OfDict):
        def forward(self, *, tokens):  # type: ignore[override]
            return self.rnn(tokens)[0]

    class OfEither(OfDict):
        def forward(self, tokens):
            return self.rnn(tokens)[0]

    for model in (OfDict(), OfKeywords(), OfEither()):
        assert len(diagnosed(model, {"tokens": torch.randn(9, 2, 3)}).layers) == 1


class Wrapper:
    """Holds its network as forecasters and agents do."""

    def __init__(self, network, name):
        setattr(self, name, [network] if name == "models" else network)


@pytest.mark.parametrize(("name", "said"), [("model", "model"), ("policy", "policy"), ("models", "models[0]")])
def test_of_a_wrapper_the_attribute_is_named_that_is_the_module(name, said):
    wrapper: Any = Wrapper(nn.Sequential(nn.GRU(3, 5)), name)
    for call in (lambda: measure(wrapper, torch.randn(9, 2, 3)), lambda: Monitor(wrapper)):
        with pytest.raises(ModuleError, match="Wrapper is no torch.nn.Module") as refused:
            call()
        assert f"its attribute {said} (Sequential) is one with recurrent layers" in str(refused.value)


@pytest.mark.parametrize("value", [3, None, "lstm", SimpleNamespace(x=1)])
def test_what_is_no_module_is_refused(value):
    with pytest.raises(ModuleError, match=r"module: \w+ is no torch.nn.Module"):
        measure(value, torch.randn(9, 2, 3))


def test_batches_without_values_are_refused():
    gru = nn.GRU(3, 5)
    for batch, why in (
        (torch.empty(9, 0, 3), r"batch: shape \(9, 0, 3\)"),
        (torch.empty(9, 2, 3, device="meta"), "batch: a tensor on the meta device"),
        (SimpleNamespace(x=torch.empty(9, 2, 3, device="meta")), "batch: a tensor on the meta device"),
    ):
        with pytest.raises(ValueError, match=why):
            measure(gru, batch)
    with pytest.raises(ValueError, match="model: it is on the meta device"):
        measure(nn.GRU(3, 5, device="meta"), torch.randn(9, 2, 3))
    with pytest.raises(ValueError, match=r"batch: complex numbers"):
        measure(gru, torch.randn(9, 2, 3, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (None, "NoneType"),
        ("text", "str"),
        (np.zeros((9, 2, 3), dtype=np.float32), "ndarray"),
        ([1, 2], "list of 2"),
        ((), "tuple of 0"),
        ([torch.zeros(9, 2, 3)] * 3, "list of 3"),  # as of a loader that gives targets too
        ({}, "dict of nothing"),
        ({"inputs": torch.zeros(9, 2, 3)}, "dict of inputs"),
    ],
)
def test_batches_that_forward_does_not_take_are_refused(batch, kind):
    with pytest.raises(ValueError, match=rf"batch: {kind} is not allowed; it must be what forward takes \(input, hx\)"):
        measure(nn.GRU(3, 5), batch)


def test_of_inputs_and_targets_the_inputs_are_asked_for():
    model = nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 5))
    with pytest.raises(ValueError, match=r"batch: tuple of 2 is not allowed.*\(inputs, targets\) give the inputs"):
        measure(model, (torch.zeros(9, 2, 3), torch.zeros(2)))


def test_of_a_tensor_the_missing_arguments_are_asked_for():
    class OfBoth(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 5)

        def forward(self, x, lengths):
            return self.rnn(x)[0]

    class OfKeywords(OfBoth):
        def forward(self, *, x, lengths=None):  # type: ignore[override]
            return self.rnn(x)[0]

    for model in (OfBoth(), OfKeywords()):
        with pytest.raises(ValueError, match=r"batch: Tensor is not allowed; .* forward takes \(x, lengths\)"):
            measure(model, torch.zeros(9, 2, 3))


class OfNested(nn.Module):
    """Pads what it is given, and writes to that."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 5, batch_first=True)

    def forward(self, x):
        padded = torch.nested.to_padded_tensor(x, 0.0)
        for sequence in x.unbind():
            sequence.detach().zero_()
        return self.rnn(padded)[0][:, -1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    given = [torch.randn(steps, 3) for steps in (25, 40, 12)]
    batch = torch.nested.nested_tensor(given, layout=layout)
    report = diagnosed(OfNested(), batch)
    assert report.layers[0].info.steps == 40 and report.layers[0].use.reads_batch
    isornn.init.critical_(OfNested(), batch=batch)
    assert all(torch.equal(before, after) for before, after in zip(given, batch.unbind(), strict=True))
    with pytest.raises(ValueError, match="batch: a nested tensor is not allowed as input of a recurrent layer"):
        measure(nn.GRU(3, 5, batch_first=True), batch)


def test_a_fault_of_the_model_itself_is_left_as_it_is():
    class Faulty(nn.GRU):
        def forward(self, input, hx=None):
            return self.absent(input)

    for batch in (torch.zeros(9, 2, 3), {"input": torch.zeros(9, 2, 3)}):
        with pytest.raises(AttributeError, match="absent"):
            measure(Faulty(3, 5), batch)


class Named(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.rnn, self.names = nn.GRU(3, 5), names

    def forward(self, x):
        return {name: self.rnn(x)[0][-1] for name in self.names}


@pytest.mark.parametrize("names", [("logits", "state"), ("values",)])
def test_a_target_is_compared_with_the_logits_of_a_mapping_or_its_one_tensor(names):
    assert diagnosed(Named(*names), torch.randn(9, 2, 3), target=torch.tensor([1, 4])).loss > 0


def test_a_mapping_without_logits_names_what_it_has():
    with pytest.raises(ValueError, match="a mapping of one, two, and not logits; give a function"):
        diagnosed(Named("one", "two"), torch.randn(9, 2, 3), target=torch.tensor([1, 4]))
