"""Callbacks in Lightning's own Trainer, of both packages, resumed, with manual optimisation, in two processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isornn.diagnosis import measure
from isornn.integrations.lightning import CriticalStart, Diagnose, MonitorCallback
from isornn.nn.gate_tensors import ModuleError

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

T, B, D, N = 30, 4, 3, 16


def network_of(package):
    base: Any = package.LightningModule

    class Network(base):
        def __init__(self, layers=2):
            super().__init__()
            self.rnn = nn.LSTM(D, N, layers, batch_first=True)
            self.head = nn.Linear(N, 1)
            self.seen = []
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

        def training_step(self, batch, batch_idx):
            x, y = batch
            x.add_(1)  # what it does to its batch in place does not reach the next run
            self.calls += 1
            self.seen.append(batch_idx)
            loss = (self(x) - y).square().mean()
            self.log("loss", loss, on_step=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    return Network


Network: Any = network_of(lightning.pytorch)


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.rows = []

    name, version = "kept", 0

    def log_metrics(self, metrics, step=None):
        self.rows += [(step, name, value) for name, value in metrics.items()]

    def log_hyperparams(self, params, *args, **kwargs):
        pass


@pytest.fixture
def loader():
    torch.manual_seed(0)  # of the models
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(8 * B, T, D, generator=generator), torch.randn(8 * B, 1, generator=generator))
    return DataLoader(data, batch_size=B)


def fitted(tmp_path, model, loader, *callbacks, package=lightning.pytorch, logger=False, ckpt_path=None, **options):
    trainer = package.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=logger,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        **{"max_epochs": 1, **options},
    )
    trainer.fit(model, loader, ckpt_path=ckpt_path)
    return trainer


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def differing(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


class AtFirstBatch(lightning.pytorch.Callback):
    """The module's state as the training finds it."""

    state: dict[str, torch.Tensor]

    def on_train_start(self, trainer, pl_module):
        self.before = weights(pl_module)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if not hasattr(self, "state"):
            self.state, self.batch, self.training = weights(pl_module), batch[0].clone(), pl_module.training
            self.seen = list(pl_module.seen)


@pytest.mark.parametrize("package", [lightning.pytorch, pytorch_lightning])
def test_recurrent_layers_alone_are_set_for_the_trainers_own_first_batch(tmp_path, loader, package):
    started, first, logger = CriticalStart(generator=torch.Generator().manual_seed(0)), AtFirstBatch(), Kept()
    assert CriticalStart().start is None
    model = network_of(package)()
    fitted(tmp_path, model, loader, started, first, package=package, logger=logger)
    changed = differing(first.before, first.state)
    assert changed and all(name.startswith("rnn.") for name in changed)
    assert first.training and first.seen == [] and first.state["calls"] == 0
    assert torch.equal(first.batch, loader.dataset.tensors[0][:B])
    (lower, upper) = started.start.layers
    assert lower.length == upper.length == T and started.start.left_alone is None
    assert lower.input.means.numpy() == pytest.approx(1 + first.batch.mean((0, 1)).numpy(), abs=1e-6)
    assert [row for row in logger.rows if row[1].endswith("/length")] == [
        (0, f"critical_start/rnn (LSTM) l{layer}/length", T) for layer in (0, 1)
    ]
    assert [step for step, name, _ in logger.rows if name == "loss"] == list(range(8))  # none of the callback's runs


def test_gradients_come_back_from_all_steps(tmp_path, loader):
    model = Network(layers=1)
    vanishing = measure(model, loader.dataset.tensors[0]).layers[0].backward.xi.number()
    fitted(tmp_path, model, loader, CriticalStart(generator=torch.Generator().manual_seed(0)), max_steps=1)
    assert vanishing < T / 4 < measure(model, loader.dataset.tensors[0]).layers[0].backward.xi.number()


def test_length_is_given(tmp_path, loader):
    started = CriticalStart(500)
    fitted(tmp_path, Network(), loader, started, max_steps=1)
    assert {layer.length for layer in started.start.layers} == {500}


def test_a_refused_length_ends_the_fit(tmp_path, loader):
    with pytest.raises(ValueError, match="length"):
        fitted(tmp_path, Network(), loader, CriticalStart(1), max_steps=1)


def test_without_recurrent_layers(tmp_path, loader):
    model = Network()
    model.rnn = nn.Sequential()
    with pytest.raises(ModuleError):
        fitted(tmp_path, model, loader, CriticalStart(), max_steps=1)


def test_resumed_reloaded_and_continued_fits_are_left_alone(tmp_path, loader):
    model, started = Network(), CriticalStart()
    trainer = fitted(tmp_path, model, loader, started)
    assert started.start.left_alone is None
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    trained = weights(model)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader)
    assert "updates were made before" in str(started.start.left_alone)

    resumed, first = CriticalStart(), AtFirstBatch()
    fitted(tmp_path, Network(), loader, resumed, first, ckpt_path=tmp_path / "saved.ckpt", max_epochs=3)
    assert resumed.start.left_alone == "the fit goes on from a checkpoint"
    assert differing(first.before, first.state) == set()

    reloaded, first, model = CriticalStart(), AtFirstBatch(), Network()
    model.load_state_dict(trained)
    fitted(tmp_path, model, loader, reloaded, first, max_steps=1)
    assert reloaded.start.left_alone == "rnn (LSTM) l0, rnn (LSTM) l1 look trained"
    assert differing(trained, first.state) == set()


def test_one_callback_starts_every_new_model(tmp_path, loader):
    started = CriticalStart()
    for _ in range(2):
        fitted(tmp_path, Network(), loader, started, max_steps=1)
        assert started.start.left_alone is None


class Manual(Network):
    """Two optimisers; a training step of its own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_manual_optimisation_makes_no_update_before_the_first(tmp_path, loader):
    started, first, model = CriticalStart(), AtFirstBatch(), Manual()
    reports = Diagnose(tmp_path / "reports")
    trainer = fitted(tmp_path, model, loader, started, first, reports)
    assert trainer.global_step == len(loader) and len(started.start.layers) == 2
    assert all(name.startswith("rnn.") for name in differing(first.before, first.state))
    assert sorted(reports.reports) == [0, len(loader)]
    assert reports.reports[0].diagnosis.loss is None


def test_reports_before_during_and_after(tmp_path, loader):
    model, logger, written = Network(), Kept(), Diagnose(every=3, length=200)
    assert written.reports == {}
    trainer = fitted(tmp_path, model, loader, written, logger=logger)
    assert trainer.global_step == 8 and sorted(written.reports) == [0, 3, 6, 8]
    assert written.reports[0].diagnosis.loss is not None
    assert {finding.kind for finding in written.reports[0].findings} == {"default_start"}
    folder = tmp_path / "isornn"
    assert sorted(file.name for file in folder.iterdir()) == [
        f"step-00000{step}.{ending}" for step in (0, 3, 6, 8) for ending in ("html", "json")
    ]
    assert json.loads((folder / "step-000000.json").read_text())["length"] == 200
    logged = {(step, name): value for step, name, value in logger.rows}
    assert logged[0, "diagnosis/findings"] == 2 and logged[0, "diagnosis/rnn l0/default_start"] == 1
    assert 0 < logged[8, "diagnosis/rnn l0/xi"] < 60


def test_a_report_is_of_the_start_that_is_listed_before_it(tmp_path, loader):
    written = Diagnose()
    fitted(tmp_path, Network(), loader, CriticalStart(), written, MonitorCallback(every=1), max_steps=1)
    assert written.reports[0].findings == ()


def test_what_cannot_be_measured_does_not_end_the_fit(tmp_path, loader, caplog):
    model = Network()
    model.rnn = nn.TransformerEncoderLayer(D, 1, batch_first=True)
    model.head = nn.Linear(D, 1)
    model.forward = lambda x: model.head(model.rnn(x)[:, -1])
    trainer = fitted(tmp_path, model, loader, Diagnose(), max_steps=2)
    assert trainer.global_step == 2 and "step 0: no diagnosis" in caplog.text


def test_an_error_of_the_step_in_eval_mode_does_not_end_the_fit(tmp_path, loader, caplog):
    class TrainsOnly(Network):
        def training_step(self, batch, batch_idx):
            if not self.training:
                raise KeyError("loss")
            return {"loss": super().training_step(batch, batch_idx)}

    trainer = fitted(tmp_path, TrainsOnly(), loader, Diagnose(), max_steps=2)
    assert trainer.global_step == 2 and "step 0: no diagnosis: KeyError" in caplog.text


def test_what_could_not_be_measured_is_not_tried_again_at_the_same_update(tmp_path, loader, caplog):
    """As after each of several batches of one update, and at the end of the fit."""

    class NoLoss(Network):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss if self.training else None

    fitted(tmp_path, NoLoss(), loader, Diagnose(every=1), max_steps=1, accumulate_grad_batches=2)
    assert [caplog.text.count(f"step {step}: no diagnosis") for step in (0, 1)] == [1, 1]


def test_a_training_step_that_takes_batches_itself_is_refused_by_name(tmp_path, loader, caplog):
    class Takes(Network):
        def training_step(self, dataloader_iter):
            (x, y), _, _ = next(dataloader_iter)
            return (self(x) - y).square().mean()

    with pytest.raises(ValueError, match=r"^training_step: dataloader_iter is not allowed; it must take a batch"):
        fitted(tmp_path, Takes(), loader, CriticalStart(), max_steps=1)
    assert fitted(tmp_path, Takes(), loader, Diagnose(), max_steps=1).global_step == 1
    assert "no diagnosis: ValueError: training_step: dataloader_iter" in caplog.text


def test_a_report_that_cannot_be_written_does_not_end_the_fit(tmp_path, loader, caplog):
    (tmp_path / "file").touch()
    written = Diagnose(tmp_path / "file")
    trainer = fitted(tmp_path, Network(), loader, written, max_steps=1)
    assert trainer.global_step == 1 and sorted(written.reports) == [0, 1]
    assert "step 0: the report is not written" in caplog.text


def test_a_training_step_of_any_arguments_gets_what_the_trainer_gives_it(tmp_path, loader):
    class OfAnything(Network):
        def training_step(self, *arguments):
            batch, batch_idx = arguments
            return super().training_step(batch, batch_idx)

    started = CriticalStart()
    fitted(tmp_path, OfAnything(), loader, started, max_steps=1)
    assert started.start.left_alone is None


def test_a_batch_that_cannot_be_copied_is_named(tmp_path):
    loader: Any = DataLoader(torch.randn(B, T, D), batch_size=B)  # type: ignore[arg-type]
    loader.collate_fn = lambda rows: (torch.stack(rows), (row for row in rows))
    with pytest.raises(ValueError, match=r"^batch: .*cannot pickle 'generator' object"):
        fitted(tmp_path, Network(), loader, CriticalStart(), max_steps=1)


def test_layers_too_small_to_be_judged_are_left_alone_for_that_reason(tmp_path, loader):
    model, started = Network(), CriticalStart()
    model.rnn, model.head = nn.LSTM(D, 2, batch_first=True), nn.Linear(2, 1)
    fitted(tmp_path, model, loader, started, max_steps=1)
    assert started.start.left_alone == "rnn (LSTM) l0: too few weights to tell whether they are trained"


@pytest.mark.parametrize("every", [0, True, 2.5])
def test_every_is_checked(every):
    with pytest.raises(ValueError, match="every: .* is not allowed"):
        Diagnose(every=every)


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_monitor(tmp_path, loader):
    logger, watching = Kept(), MonitorCallback(every=2)
    assert MonitorCallback().record is None
    model = Network(layers=1)
    # Two batches are one update. The start and the reports are not watched.
    fitted(tmp_path, model, loader, watching, CriticalStart(), Diagnose(), logger=logger, accumulate_grad_batches=2)
    assert hooks(model) == 0
    assert watching.record.iterations.tolist() == [0, 2]
    assert watching.record.layers[0].reasons == ("", "")
    assert (0, "rnn l0/xi") in {(step, name) for step, name, _ in logger.rows}
    assert not any(name == "iteration" for _, name, _ in logger.rows)


class Two(Network):
    """Two optimisers that both step in every batch, so that an update of the module is two of the Trainer's."""

    def __init__(self):
        super().__init__(1)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters()) for part in (self.rnn, self.head)]

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for optimizer in optimizers:
            optimizer.step()


def test_updates_are_the_trainers_also_with_two_optimisers(tmp_path, loader):
    watching = MonitorCallback(every=4)
    assert fitted(tmp_path, Two(), loader, watching).global_step == 16
    assert watching.record.iterations.tolist() == [0, 4, 8, 12]


def test_a_monitor_sees_the_same_with_and_without_reports(tmp_path, loader):
    records = []
    for others in ((), (Diagnose(every=1),)):
        torch.manual_seed(0)
        watching = MonitorCallback(every=1)
        fitted(tmp_path, Network(layers=1), loader, watching, *others, max_steps=3)
        records.append(watching.record)
    assert records[0].iterations.tolist() == records[1].iterations.tolist() != []
    assert records[0].layers[0].xi.tolist() == records[1].layers[0].xi.tolist()
    assert records[0].layers[0].loss["all"].tolist() == records[1].layers[0].loss["all"].tolist()


def test_a_monitor_ends_with_a_failing_fit(tmp_path, loader):
    class Failing(Network):
        def training_step(self, batch, batch_idx):
            if batch_idx == 5:
                raise RuntimeError("broken")
            return super().training_step(batch, batch_idx)

    model, watching = Failing(), MonitorCallback(every=5)
    with pytest.raises(RuntimeError, match="broken"):
        fitted(tmp_path, model, loader, watching)
    assert hooks(model) == 0 and watching.record.iterations.tolist() == [0]


TWO_PROCESSES = """
import sys, torch, lightning.pytorch as lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from isornn.integrations.lightning import CriticalStart, Diagnose

class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        loss = (self.head(self.rnn(batch[0])[0][:, -1]) - 1).square().mean()
        self.all_gather(loss)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())

class Show(lightning.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        digits = [value.hex() for value in pl_module.rnn.bias_ih_l0[:20].tolist()]
        print("\\nweights", trainer.global_rank, *digits, flush=True)

if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(8, 40, 3)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1],
        callbacks=[CriticalStart(), Diagnose(), Show()],
    )
    trainer.fit(Network(), loader)
    print("\\nstart", trainer.global_rank, trainer.callbacks[0].start.layers[0].length, flush=True)
"""


def test_two_processes_have_the_same_start(tmp_path: Path):
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    words = [line.split() for line in ended.stdout.splitlines()]
    shown = {line[1]: line[2:] for line in words if line[:1] == ["weights"]}
    assert shown["0"] == shown["1"] and any(float.fromhex(value) for value in shown["0"])
    assert [file.name for file in (tmp_path / "isornn").glob("*.json")]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    for absent in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, "isornn.integrations.lightning")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'isornn\[lightning\]'"):
        __import__("isornn.integrations.lightning")
