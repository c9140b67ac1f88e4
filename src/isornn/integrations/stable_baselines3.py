"""A callback for RecurrentPPO. Importing this needs the packages stable-baselines3 and sb3-contrib."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isornn.extras import named
from isornn.integrations.start import TrainingStart, start_, trained

try:
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.callbacks import BaseCallback
except ModuleNotFoundError as error:
    raise named(error) from None


class CriticalStart(BaseCallback):  # type: ignore[misc]
    """Gives a policy's recurrent layers, actor and critic, a critical start; ``learn(n, callback=CriticalStart())``.

    Before training one rollout is collected with the policy as it is, and counts as environment steps; each layer is
    drawn for what it receives in it, as `isornn.init.critical_` does. Then the environments are reset and training
    begins, with nothing of that rollout left in it but the statistics of a ``VecNormalize``. Nothing is set where steps
    were made before, or where a recurrent layer looks trained, as of a loaded policy. Either way a line is printed
    where ``verbose`` is at least 1, and numbers go to the model's logger.

    Args:
        length: T from 2 to 1e6 to bridge; by default that of the rollout's longest episode.
        generator: of the weights; torch's global one if ``None``.
        verbose: as every callback's.

    Raises:
        ValueError: the model's policy is not recurrent.
        SpecError, ModuleError: as `isornn.init.critical_`.
    """

    def __init__(
        self, length: float | None = None, *, generator: torch.Generator | None = None, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self._length, self._generator = length, generator
        self.start: TrainingStart | None = None
        """What was done in the last training; ``None`` before the first."""

    def _on_training_start(self) -> None:
        if not isinstance(self.model.policy, RecurrentActorCriticPolicy):
            name = type(self.model.policy).__name__
            raise ValueError(f"model: its policy is {name}, which is not recurrent; RecurrentPPO's are")
        made = self.model.num_timesteps
        why = f"{made} steps were made before" if made else trained(self.model.policy)
        self.start = self._drawn() if why is None else TrainingStart((), why)
        if self.verbose:
            print(self.start)
        for name, value in self.start.numbers().items():
            self.logger.record(name, value)

    def _on_step(self) -> bool:
        return True

    def _drawn(self) -> TrainingStart:
        model = self.model
        callback = _Nothing()
        callback.init_callback(model)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        buffer = model.rollout_buffer
        # Episodes of one step are to be bridged as those of two; a length that was given is the caller's own.
        length = max(2, longest_episode(buffer.episode_starts)) if self._length is None else self._length
        start = start_(model.policy, _run_over(model), length, self._generator)
        buffer.reset()
        model.ep_info_buffer.clear()  # the mean reward that is logged is of the training's own episodes
        model.ep_success_buffer.clear()
        model._last_obs = model.env.reset()
        model._last_episode_starts = np.ones(model.n_envs, dtype=bool)
        return start


class _Nothing(BaseCallback):  # type: ignore[misc]
    def _on_step(self) -> bool:
        return True


def longest_episode(starts: np.ndarray) -> int:
    """Steps of the longest stretch without a start, of a rollout's marks (steps, environments).

    >>> longest_episode(np.array([[1, 0], [0, 0], [0, 1], [1, 0], [0, 0]]))
    3
    """
    steps, environments = starts.shape
    return max(
        after - before
        for number in range(environments)
        for before, after in pairwise(sorted({0, *np.flatnonzero(starts[:, number]).tolist(), steps}))
    )


def _run_over(model: Any) -> Any:
    """Runs a policy over the rollout's observations, those of one environment as one sequence."""
    buffer = model.rollout_buffer

    def sequences(observed: Any) -> Any:
        if isinstance(observed, dict):
            return {name: sequences(one) for name, one in observed.items()}
        return torch.as_tensor(buffer.swap_and_flatten(observed), device=model.device)

    observations = sequences(buffer.observations)
    # Without starts in between, the policy runs its layers over all steps at once.
    continued = torch.zeros(model.n_steps * model.n_envs, device=model.device)

    def zeros(states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(map(torch.zeros_like, states))

    def run(policy: Any) -> Any:
        states = model._last_lstm_states
        actor = policy.get_distribution(observations, zeros(states.pi), continued)
        return actor, policy.predict_values(observations, zeros(states.vf), continued)

    return run
