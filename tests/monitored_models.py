"""Models that monitors watch, and a few updates of them with a monitor or without."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from isornn.diagnosis import Monitor
from isornn.nn import SpectralRNN
from isornn.nn import layers as own_layers
from isornn.nn.spectral import parametrize_spectral_

T, B, D, N = 12, 5, 3, 7


class Reader(nn.Module):
    """Reads outputs, more than once, and last states; writes over the outputs on the way where torch allows it."""

    def __init__(self, rnn, read="all", packed=False):
        super().__init__()
        self.rnn, self.read, self.packed = rnn, read, packed
        directions = 2 if rnn.bidirectional else 1
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(directions * getattr(rnn, "hidden_size", N), 2)

    def forward(self, x):
        lengths = torch.arange(x.shape[1]) % 3 + x.shape[0] - 2
        x = pack_padded_sequence(x, lengths, enforce_sorted=False) if self.packed else x
        out, state = self.rnn(x)
        out = nn.utils.rnn.pad_packed_sequence(out)[0] if self.packed else out
        h = state[0] if isinstance(state, tuple) else state
        if self.read == "last":
            return self.head(out[-1])
        out = out.mul_(1.5) if type(self.rnn) is nn.GRU else out * 1.5
        out = self.head(self.drop(out) + 0.1 * out.relu() + 0.1 * out.sin())
        return out + h.sum() if self.read == "all" else out


class ByHand(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(N, 2)

    def forward(self, x):
        state, outs = None, []
        for one in x:
            state = self.cell(one, state)
            outs.append(self.head(state[0] if isinstance(state, tuple) else state))
        return torch.stack(outs)


MODELS = {
    "lstm": lambda: Reader(nn.LSTM(D, N, num_layers=2, bidirectional=True)),
    "lstm dropout": lambda: Reader(nn.LSTM(D, N, num_layers=2, dropout=0.3)),
    "packed gru": lambda: Reader(nn.GRU(D, N, num_layers=2), packed=True),
    "spectral": lambda: Reader(SpectralRNN(D, N, margin=0.1)),
    "spectral lstm": lambda: Reader(parametrize_spectral_(nn.LSTM(D, N), "weight_hh_l0")),
    "peephole": lambda: Reader(own_layers.PeepholeLSTM(D, N, bidirectional=True)),
    "own lstm": lambda: Reader(own_layers.LSTM(D, N, num_layers=2)),
    "lstm cell": lambda: ByHand(nn.LSTMCell(D, N)),
    "gru cell": lambda: ByHand(nn.GRUCell(D, N)),
}


def trained(make, monitored, updates=3, **options):
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = Monitor(model, every=1, **options) if monitored else None
    outputs = []
    for _ in range(updates):
        optimizer.zero_grad()
        out = model(torch.randn(T, B, D))
        outputs.append(out.detach().clone())
        out.square().mean().backward()
        optimizer.step()
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        monitor.close()
    return model, outputs, torch.get_rng_state(), monitor


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
