"""A recurrent layer whose recurrent matrices are factorised from the start."""

from __future__ import annotations

from typing import Any

import torch

from isornn.nn.layers import VanillaRNN
from isornn.nn.rnn import suffix
from isornn.nn.spectral import Start, is_spectral, parametrize_spectral_


class SpectralRNN(VanillaRNN):
    """`VanillaRNN` with factorised recurrent matrices: ``h = phi(U diag(s) V^T h + W_ih x + b)``, `SpectralMatrix`.

    Args:
        input_size, hidden_size, args, options: as `VanillaRNN`, but without ``proj_size``.
        margin: m, or ``None`` for no bound.
        start, generator: of the recurrent matrices, as in `parametrize_spectral_`; other parameters are
            initialised as in torch's layers.

    Raises:
        ValueError: as `VanillaRNN` and `parametrize_spectral_`.

    Source: Vorontsov et al. 2017.

    >>> layer = SpectralRNN(3, 8, margin=0.0, nonlinearity="identity")
    >>> out, h = layer(torch.ones(7, 2, 3))
    >>> w = layer.weight_hh_l0
    >>> torch.allclose(w @ w.T, torch.eye(8), atol=1e-6)
    True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        margin: float | None = 0.1,
        start: Start = "orthogonal",
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, *args, **options)
        if self.proj_size:
            raise ValueError(f"proj_size: {self.proj_size} is not allowed; factorised recurrent matrices are square")
        for name in self._recurrent():
            parametrize_spectral_(self, name, margin, start=start, generator=generator)

    def reset_parameters(self) -> None:
        """Torch's default start of all but the factorised matrices, which stay."""
        kept = {name: getattr(self, name).detach() for name in self._recurrent() if is_spectral(self, name)}
        super().reset_parameters()
        for name, weight in kept.items():
            setattr(self, name, weight)

    def _recurrent(self) -> list[str]:
        return ["weight_hh" + suffix(layer, direction) for layer, direction in self.places()]
