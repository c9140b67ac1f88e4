"""A monitor changes nothing of what is trained, leaves no trace, and looks when it is to."""

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isornn.diagnosis import Monitor
from isornn.diagnosis.training_step import DROPPED
from isornn.init import ModuleError
from isornn.training import State, train
from monitored_models import MODELS, B, D, N, Reader, T, hooks, trained


@pytest.mark.parametrize("name", MODELS)
def test_changes_nothing_to_the_bit(name):
    model, outputs, numbers, monitor = trained(MODELS[name], True)
    plain, plain_outputs, plain_numbers, _ = trained(MODELS[name], False)
    assert all(torch.equal(a, b) for a, b in zip(outputs, plain_outputs, strict=True))
    assert torch.equal(numbers, plain_numbers)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a.grad, b.grad)
    assert not any(hooks(model))
    for layer in monitor.record.layers:
        if name == "lstm dropout":
            assert layer.reasons == (DROPPED,) * 3
        else:
            assert all(not reason or reason.startswith("infinite") for reason in layer.reasons)
            assert np.isfinite(layer.loss["all"]).all() and np.isfinite(layer.last["all"]).all()


def test_hooks_only_in_watched_steps_and_copies_do_not_watch():
    model = nn.Sequential(nn.GRU(D, N))
    monitor = Monitor(model, every=2)
    first, second = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    seen = []
    for _ in range(5):
        seen.append(any(hooks(model)))
        for copied in (first, second):
            copied(torch.ones(4, 2, D))[0].sum().backward()
        model(torch.ones(4, 2, D))[0][-1].sum().backward()
        monitor.step()
    monitor.close()
    monitor.step()
    assert seen == [True, False, True, False, True] and not any(hooks(model))
    assert monitor.record.iterations.tolist() == [0, 2, 4]


def test_in_the_training_loop_and_a_resumed_one():
    model = Reader(nn.LSTM(D, N), "last")
    state = State(model, torch.optim.Adam(model.parameters(), 0.1), update=7)
    batches = iter([(torch.randn(T, B, D), torch.zeros(B, dtype=torch.long))] * 12)
    with Monitor(model, every=5) as monitor:
        train(state, batches, 19, on_update=[monitor])
    assert monitor.record.iterations.tolist() == [7, 10, 15]
    assert monitor.record.layers[0].reasons == ("", "", "")


@pytest.mark.parametrize("update", [-1, 0, 1.5, "x", True])
def test_an_update_is_a_number(update):
    monitor = Monitor(nn.GRU(D, N))
    with pytest.raises(ValueError, match="update: .* is not allowed; it must be a whole number of updates, at least 1"):
        monitor.step(update)
    with pytest.raises(ValueError, match="updates: .* is not allowed"):
        Monitor(nn.GRU(D, N), updates=update or -1)


def test_updates_made_before_are_counted():
    monitor = Monitor(nn.GRU(D, N), every=5, updates=3)
    for _ in range(4):
        monitor.step()
    monitor.step(12)
    assert monitor.record.iterations.tolist() == [3, 5]


@pytest.mark.parametrize(("every", "shown"), [(0, "0"), (2.0, "2.0"), (True, "True")])
def test_every_is_a_number_of_updates(every, shown):
    with pytest.raises(ValueError, match=f"every: {shown} is not allowed"):
        Monitor(nn.GRU(D, N), every)


def test_a_log_that_is_no_function_is_refused_before_training():
    wrong: Any = 3
    with pytest.raises(ValueError, match="log: 3 is not allowed; it must be a function or None"):
        Monitor(nn.GRU(3, 8), log=wrong)


def test_models_that_cannot_be_watched_are_refused():
    with pytest.raises(ModuleError, match="holds no recurrent layer"):
        Monitor(nn.Linear(2, 2))
    compiled = nn.GRU(D, N)
    compiled.compile(backend="eager")
    with pytest.raises(ValueError, match="it is compiled"):
        Monitor(compiled)
    rnn = nn.RNN(D, N)
    rnn.lock = threading.Lock()
    with pytest.raises(ValueError, match="RNN cannot be copied"):
        Monitor(rnn)
    assert not any(hooks(rnn))
    with Monitor(nn.ModuleDict({"rnn": nn.RNN(D, N)})) as monitor, pytest.raises(ValueError, match="recorded are rnn"):
        monitor.record.layer("other")


def test_a_batch_without_sequences_does_not_end_the_training():
    rnn = nn.LSTM(D, N)
    with Monitor(rnn, every=1) as monitor:
        for batch in (0, 2):
            rnn(torch.randn(T, batch, D))[0].sum().backward()
            monitor.step()
    first, second = monitor.record.layers[0].reasons
    assert "holds no step to measure" in first and second == ""
