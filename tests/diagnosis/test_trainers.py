"""Monitors as callbacks of Lightning's and of Hugging Face's Trainer: stand-ins of them, which call the same hooks."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

T, B, D, N = 6, 3, 2, 4
NAMES = ("lightning_monitor", "transformers_monitor")


class Callback:
    """As both packages' base classes: every hook does nothing."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        raise AssertionError("overridden")


@pytest.fixture
def callback(monkeypatch: pytest.MonkeyPatch):
    """`MonitorCallback` by the module's name, imported while stand-ins are in the place of the packages."""
    packages = {"lightning": {}, "lightning.pytorch": {"Callback": Callback}}
    packages["transformers"] = {"TrainerCallback": type("TrainerCallback", (), {})}
    for name, content in packages.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield lambda name: importlib.import_module(f"isornn.diagnosis.{name}").MonitorCallback
    for name in NAMES:
        sys.modules.pop(f"isornn.diagnosis.{name}", None)


def micro_batch(model):
    model(torch.randn(T, B, D))[0][-1].sum().backward()


def hooks(model):
    return len(model._forward_hooks)


@pytest.mark.parametrize("failing", [False, True])
def test_lightning(callback, failing):
    model, told = nn.GRU(D, N), []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: told.append((step, metrics)))
    trainer = SimpleNamespace(global_step=0, loggers=[logger])
    watching = callback("lightning_monitor")(every=2)
    assert watching.record is None
    watching.on_train_start(trainer, model)
    for batch in range(10):
        micro_batch(model)
        trainer.global_step = (batch + 1) // 2  # two batches are one update
        watching.on_train_batch_end(trainer, model, None, None, batch)
    assert hooks(model) == 0  # 5 updates made, the next to be watched is that after 6
    micro_batch(model)
    trainer.global_step += 1
    watching.on_train_batch_end(trainer, model, None, None, 10)
    assert hooks(model) == 1
    if failing:
        watching.on_exception(trainer, model, KeyboardInterrupt())
    else:
        watching.on_train_end(trainer, model)
    assert hooks(model) == 0
    assert watching.record.iterations.tolist() == [0, 2, 4] == [step for step, _ in told]
    assert watching.record.layers[0].reasons == ("", "", "")
    assert "GRU l0/xi" in told[0][1] and "iteration" not in told[0][1]


def test_hugging_face(callback):
    model, told = nn.GRU(D, N), []
    state = SimpleNamespace(global_step=40)  # resumed
    watching = callback("transformers_monitor")(every=4, log=told.append)
    assert watching.record is None
    watching.on_train_begin(None, state, None, model=model, optimizer=None)
    for _ in range(6):
        micro_batch(model)
        state.global_step += 1
        watching.on_step_end(None, state, None, model=model)
    watching.on_train_end(None, state, None, model=model)
    assert watching.record.iterations.tolist() == [40, 44] and hooks(model) == 0
    assert [row["iteration"] for row in told] == [40, 44]


@pytest.mark.parametrize(("name", "package"), [*zip(NAMES, ("lightning", "transformers"), strict=True)])
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, name: str, package: str):
    for absent in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, absent, None)
    sys.modules.pop(f"isornn.diagnosis.{name}", None)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        importlib.import_module(f"isornn.diagnosis.{name}")
