"""What a monitor cannot measure has a reason, and what it can has none, whatever precision and device it is in."""

import numpy as np
import pytest
import torch
from torch import nn

from isornn.capture import recorder
from isornn.diagnosis import Monitor
from isornn.diagnosis.measurable import UNTIED
from isornn.diagnosis.training_step import NOT_CALLED, NOT_FINITE, NOT_REACHED
from isornn.nn import VanillaRNN
from monitored_models import B, D, N, T


def test_what_cannot_be_measured_has_a_reason():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.GRU(D, N), nn.GRU(D, N)
            self.untied, self.frozen = VanillaRNN(D, N, untied=True), nn.RNN(D, N).requires_grad_(False)

        def forward(self, x):
            return self.used(x)[0].sum() + self.untied(x)[0].sum() + self.frozen(x)[0].sum()

    model = Two()
    rows: list[dict[str, float]] = []
    with Monitor(model, every=1, log=rows.append) as monitor:
        for scale in (0.0, 1.0, torch.inf):
            loss = model(torch.randn(T, B, D))
            if scale:
                (loss * scale).backward()
            monitor.step()
    reasons = {layer.name: layer.reasons for layer in monitor.record.layers}
    assert reasons["used l0"] == (NOT_REACHED, "", NOT_FINITE)
    assert reasons["idle l0"] == reasons["frozen l0"] == (NOT_CALLED,) * 3
    assert reasons["untied l0"] == (UNTIED,) * 3
    assert np.isnan(monitor.record.layer("used l0").xi).tolist() == [True, False, True]
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert "used l0/xi" in rows[1] and "used l0/xi" not in rows[0]
    assert monitor.record.summary.startswith("no time scale at iteration 2: used l0: ")
    assert f"idle l0: no xi: {NOT_CALLED}" in str(monitor.record)


def test_a_state_that_is_changed_between_calls_is_the_reason():
    """As dropout on h does in training; the sequences are not too short."""

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 8)

        def forward(self, x):
            h = c = x.new_zeros(x.shape[1], 8)
            for x_t in x:
                h, c = self.cell(x_t, (h, c))
                h = nn.functional.dropout(h, 0.5, self.training)
            return h

    model = Dropped()
    with Monitor(model, every=1) as monitor:
        model(torch.randn(10, 4, 3)).square().sum().backward()
        monitor.step()
    (layer,) = monitor.record.layers
    assert layer.reasons[0].startswith("10 calls make 10 separate sequences, of 1 step at most; a state that the model")
    with Monitor(model, every=1) as monitor:
        (model(torch.randn(10, 4, 3)).sum() * torch.inf).backward()
        monitor.step()
    assert any("not finite" in sentence for sentence in monitor.record.findings)


def test_bfloat16_under_autocast_and_double():
    for dtype in (torch.bfloat16, torch.float64):
        rnn = nn.GRU(D, N, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        with Monitor(rnn) as monitor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                rnn(torch.randn(T, B, D, dtype=rnn.weight_hh_l0.dtype))[0][-1].sum().backward()
            monitor.step()
        assert monitor.record.layers[0].reasons == ("",)


def cut(value):
    """The value with 10 bits of mantissa, as TF32 has them."""
    return value + ((value.detach().view(torch.int32) & ~0x1FFF).view(torch.float32) - value.detach())


class AsOnAGPU(nn.GRU):
    def forward(self, x, hx=None):
        weights, hx = [cut(weight) for weight in self._flat_weights], torch.zeros(1, x.shape[1], self.hidden_size)
        return torch._VF.gru(cut(x), hx, weights, True, 1, 0.0, self.training, False, False)


@pytest.mark.parametrize("known", [True, False])
def test_products_in_tf32_are_recomputed_to_its_precision(known, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_computed_in_tf32", lambda output: known)
    torch.manual_seed(0)
    rnn = AsOnAGPU(D, N)
    with Monitor(rnn) as monitor:
        rnn(torch.randn(T, B, D))[0][-1].sum().backward()
        monitor.step()
    (reason,) = monitor.record.layers[0].reasons
    assert (reason == "") is known, reason


def test_a_default_device_of_the_users_is_not_the_measurements():
    rnn, x = nn.GRU(D, N), torch.randn(T, B, D)
    with Monitor(rnn) as monitor, torch.device("meta"):
        rnn(x, torch.zeros(1, B, N, device="cpu"))[0][-1].sum().backward()
        monitor.step()
    assert monitor.record.layers[0].reasons == ("",)
