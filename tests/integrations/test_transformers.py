"""Callbacks in Hugging Face's own Trainer."""

import sys

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from isornn.integrations.transformers import CriticalStart, Diagnose, MonitorCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]

T, D, N = 20, 3, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(D, N, batch_first=True), nn.Linear(N, 1)

    def forward(self, x, labels=None):
        output = self.head(self.rnn(x)[0][:, -1])[:, 0]
        return {"loss": (output - labels).square().mean(), "logits": output}


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def trained(tmp_path):
    generator = torch.Generator().manual_seed(0)
    data = [
        {"x": torch.randn(T, D, generator=generator), "labels": torch.randn((), generator=generator)} for _ in range(32)
    ]

    def train(model, *callbacks, steps=6, resume=False, data_collator=None, compute_loss_func=None, **options):
        arguments = TrainingArguments(
            str(tmp_path / "out"),
            max_steps=steps,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            save_steps=3,
            disable_tqdm=True,
            **options,
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=data_collator,
            compute_loss_func=compute_loss_func,
            train_dataset=data,
            eval_dataset=data[:4],
            callbacks=list(callbacks),
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


def test_a_new_model_is_started_and_a_resumed_one_is_not(trained):
    model, started = Model(), CriticalStart(generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []

    def keep(module, *_):
        if module.training:  # the start's own runs are in eval mode
            seen.append({name: value.clone() for name, value in model.state_dict().items()})

    model.rnn.register_forward_hook(keep)
    trained(model, started, eval_strategy="steps", eval_steps=2, eval_on_start=True)
    assert started.start.left_alone is None
    (layer,) = started.start.layers
    assert layer.length == T
    changed = {name for name in before if not torch.equal(before[name], seen[0][name])}
    assert changed == {name for name in before if name.startswith("rnn.")}
    assert hooks(model) == 1  # the test's own

    resumed = CriticalStart()
    trained(Model(), resumed, steps=7, resume=True)
    assert resumed.start.left_alone == "6 updates were made before"


def test_a_training_that_failed_before_its_first_batch_leaves_no_second_start(trained):
    def fails(rows):
        raise OSError("no data")

    def drawn(*, after_a_failure):
        torch.manual_seed(0)
        model, started = Model(), CriticalStart(generator=torch.Generator().manual_seed(0))
        if after_a_failure:
            with pytest.raises(OSError, match="no data"):
                trained(model, started, data_collator=fails)
        trained(model, started, steps=1, learning_rate=0.0)
        return model.rnn.weight_hh_l0

    assert torch.equal(drawn(after_a_failure=True), drawn(after_a_failure=False))


def test_trained_weights_are_left_alone(trained):
    model, started = Model(), CriticalStart()
    trained(model, learning_rate=1e-2)
    trained(model, started)
    assert started.start.left_alone == "rnn (GRU) l0 looks trained"


def test_reports_and_a_monitor_beside_them(trained, tmp_path, caplog):
    rows, written = list[dict[str, float]](), Diagnose(every=3)
    watching = MonitorCallback(every=4, log=rows.append)
    assert MonitorCallback().record is None and written.reports == {}
    model = Model()
    caplog.set_level("INFO", "isornn.integrations.transformers")
    trained(model, watching, written, CriticalStart())
    assert [line.split()[2] for line in caplog.messages if line.startswith("isornn: step")] == ["0:", "3:", "6:"]
    assert sorted(written.reports) == [0, 3, 6]
    assert {finding.kind for finding in written.reports[0].findings} == {"default_start"}  # listed before the start
    assert written.reports[6].findings == () and written.reports[6].diagnosis.loss is not None
    assert (tmp_path / "out" / "isornn" / "step-000003.json").exists()
    assert watching.record.iterations.tolist() == [0, 4] and hooks(model) == 0
    assert watching.record.layers[0].reasons == ("", "")
    assert [row["iteration"] for row in rows] == [0, 4]


def test_reports_behind_a_start_are_of_it_and_no_more_than_asked_for(trained, caplog):
    """The start runs the model in train mode too, which is no batch of the Trainer's."""
    model, written = Model(), Diagnose(every=3)
    caplog.set_level("INFO", "isornn.integrations.transformers")
    trained(model, CriticalStart(generator=torch.Generator().manual_seed(0)), written)
    assert [line.split()[2] for line in caplog.messages if line.startswith("isornn: step")] == ["0:", "3:", "6:"]
    assert written.reports[0].findings == () and hooks(model) == 0


def test_a_model_that_the_trainer_compiles(trained):
    """The hook that waits for the first batch is no part of what is compiled, and acts once."""
    started, reported = CriticalStart(), Diagnose(every=2)
    model = trained(Model(), started, reported, steps=4, torch_compile=True, torch_compile_backend="eager").model
    assert started.start.left_alone is None and sorted(reported.reports) == [0, 2, 4] and hooks(model) == 0


def test_a_resumed_monitor_counts_on(trained):
    trained(Model())
    watching = MonitorCallback(every=2)
    trained(Model(), watching, steps=9, resume=True)
    assert watching.record.iterations.tolist() == [6, 8]


@pytest.mark.parametrize("every", [0, True, 2.5])
def test_every_is_checked(every):
    with pytest.raises(ValueError, match="every: .* is not allowed"):
        Diagnose(every=every)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "isornn.integrations.transformers")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'isornn\[transformers\]'"):
        __import__("isornn.integrations.transformers")


class WithoutLoss(Model):
    def forward(self, x, labels=None):
        return {"logits": self.head(self.rnn(x)[0][:, -1])[:, 0]}


def test_a_model_whose_loss_the_trainer_computes_is_diagnosed_without_it(trained, caplog):
    def loss(outputs, labels, num_items_in_batch=None):
        return (outputs["logits"] - labels).square().mean()

    caplog.set_level("INFO", "isornn.integrations.transformers")
    written = Diagnose()
    trained(WithoutLoss(), written, compute_loss_func=loss)
    assert sorted(written.reports) == [0, 6] and written.reports[6].diagnosis.loss is None
    assert any("returns no loss" in line for line in caplog.messages)
