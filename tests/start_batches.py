"""A batch with features of different sizes, and what a torch module computes of it."""

import torch

T = 60


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def offset_batch(features=5, batch=12):
    """Features with means and scales of their own, correlated in time."""
    noise = torch.randn(batch, T, features, generator=seeded(1))
    smooth = noise.cumsum(1) / torch.arange(1, T + 1).sqrt().unsqueeze(-1)
    return smooth * torch.tensor([0.3, 1.0, 2.0, 0.1, 0.5]) + torch.tensor([2.0, -1.0, 0.0, 0.5, 0.5])


def pre_activations(weight, bias_ih, bias_hh, x, gate, gates=4):
    """(B, T, N) of one gate of a torch module, without its recurrent part."""
    rows = weight.detach().double().chunk(gates)[gate]
    return x @ rows.T + (bias_ih + bias_hh).detach().double().chunk(gates)[gate]
