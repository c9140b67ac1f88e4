"""Denormal numbers are flushed where a network is trained, by all threads, and the mode is left as it was."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import isornn
from isornn.cells import LSTM, Gate, Input, Peephole, Spec, Vanilla
from isornn.modes import denormal_mode, denormals_flushed, flushes_denormals
from isornn.nn.kernels import threads
from isornn.training import State, train


def in_new_process(script):
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split("\n")


def test_what_torchs_threads_do_is_said():
    """Its pool starts once, with the mode of the thread that starts it."""
    begin = "import torch; torch.set_num_threads(2)\nfrom isornn.modes import *\n"
    inside = "with denormals_flushed(): print(denormal_mode())\n"
    assert in_new_process(begin + inside)[0] == "flushed to 0"
    late = in_new_process(begin + "print(denormal_mode())\n" + inside)
    assert late[:2] == ["computed with", "flushed to 0, but not by threads that torch had already"]


@pytest.mark.parametrize("before", [False, True])
def test_training_flushes_and_leaves_the_mode_as_it_was(before):
    model = nn.Linear(2, 2)
    state = State(model, torch.optim.SGD(model.parameters(), 0.1))
    seen = []
    with denormals_flushed(before):
        data = iter([(torch.eye(2), torch.arange(2))] * 2)
        train(state, data, 2, on_update=[lambda _: seen.append(flushes_denormals())])
        assert flushes_denormals() is before
    assert seen == [True, True]


def test_threads_of_kernels_have_the_mode(monkeypatch):
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    def halve(values, start, stop):
        for place in range(start, stop):
            values[place] *= 0.5

    for flush, left in ((True, 0.0), (False, torch.finfo(torch.float32).tiny / 2)):
        values = torch.full((8,), torch.finfo(torch.float32).tiny)
        with denormals_flushed(flush):
            threads.shared(halve, values, over=8, work=8.0)
        assert values.double().tolist() == [left] * 8


def test_a_heading_says_what_is_done():
    with denormals_flushed():
        assert denormal_mode().startswith("flushed to 0")
    with denormals_flushed(False):
        assert denormal_mode() == "computed with"


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "float64": lambda: default_dtype(torch.float64),
    "half": lambda: default_dtype(torch.float16),
    "meta device": lambda: torch.device("meta"),
    "flushed": denormals_flushed,
}


def lstm():
    return Spec(LSTM(), {name: Gate(1, 1) for name in "ifgo"}, Input(1, 0.5))


def peephole():
    return Spec(Peephole(), {name: Gate(1, 1) for name in "ifgo"}, Input(1, 0.5))


QUESTIONS = {
    "population": lambda: isornn.analyze(lstm()),
    "quadrature": lambda: isornn.analyze(peephole()),
    "tied": lambda: isornn.analyze(peephole(), tied=True, steps=5),
    "critical": lambda: isornn.critical(LSTM(), 50).spec,
    "spectrum": lambda: isornn.spectrum(Spec(Vanilla(), {"h": Gate(1, 1)}, Input(1, 0.5))),
    "simulate": lambda: isornn.simulate(
        peephole(), width=32, networks=2, steps=5, generator=torch.Generator().manual_seed(0)
    ),
}


def numbers(found):
    """Those in an answer, in order; with what stands between them."""
    text = json.dumps(found.to_json()) if hasattr(found, "to_json") else repr(vars(found))
    words = re.split(r"(-?\d+\.?\d*(?:e[-+]?\d+)?)", text)
    return [float(number) for number in words[1::2]], words[::2]


@pytest.fixture(scope="module")
def right():
    return {name: numbers(ask()) for name, ask in QUESTIONS.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_theory_does_not_depend_on_modes(question, mode, right):
    with MODES[mode]():
        found = QUESTIONS[question]()
    values, text = numbers(found)
    assert text == right[question][1]
    # The memory's alignment shows in the last digits of sums, in any mode.
    assert values == pytest.approx(right[question][0], rel=1e-9, abs=1e-12)


def test_the_lstm_of_the_table():
    with torch.inference_mode():
        answer = isornn.analyze(lstm())
    assert answer.chi.number() == pytest.approx(0.294, abs=2e-3)
    assert answer.reach.number() == pytest.approx(0.813, abs=3 * answer.reach.error())
    assert answer.reach.error() < 8e-3


@pytest.mark.parametrize("mode", MODES)
def test_a_diagnosis_does_not_depend_on_modes(mode):
    torch.manual_seed(0)
    model, x = nn.GRU(3, 8), torch.randn(30, 4, 3)

    def ask():
        target = lambda output: output[0].square().mean()  # noqa: E731
        return json.dumps(isornn.diagnose(model, x, target=target, theory=True).to_json())

    right = ask()
    with MODES[mode]():
        found = ask()
    assert found == right
