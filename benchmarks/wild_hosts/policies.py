"""sb3-contrib's recurrent policies."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from wild_hosts.case import Built


def recurrent_policy(kind: str = "MlpLstmPolicy", steps: int = 128, **options: Any) -> Built:
    """The policy of ``RecurrentPPO``, and the arguments with which it evaluates a rollout of two environments."""
    gymnasium, contrib = import_module("gymnasium"), import_module("sb3_contrib")
    vector = import_module("stable_baselines3.common.vec_env").DummyVecEnv
    rnn_states = import_module("sb3_contrib.common.recurrent.type_aliases").RNNStates
    make = [lambda: gymnasium.make("CartPole-v1")] * 2
    algorithm = contrib.RecurrentPPO(kind, vector(make), n_steps=steps, seed=0, policy_kwargs=options, device="cpu")
    policy = algorithm.policy

    class Evaluated(torch.nn.Module):
        """``evaluate_actions``, which the update calls, in the place of forward."""

        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, observations: torch.Tensor, actions: torch.Tensor, starts: torch.Tensor) -> Any:
            layers, _, width = policy.lstm_hidden_state_shape
            blank = (torch.zeros(layers, 2, width), torch.zeros(layers, 2, width))
            return policy.evaluate_actions(observations, actions, rnn_states(blank, blank), starts)

    generator = torch.Generator().manual_seed(0)
    observations = torch.randn(2 * steps, 4, generator=generator)
    return Evaluated(), (observations, torch.zeros(2 * steps, dtype=torch.long), torch.zeros(2 * steps))
