"""sb3-contrib's RecurrentPPO with and without the critical start, on a cue that must be recalled 30 steps later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from compared import Run, Task, measured
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from isornn.integrations.stable_baselines3 import CriticalStart

ROLLOUTS, ENVS, STEPS, EPOCHS = 12, 16, 128, 10
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "n_steps": STEPS,
    "batch_size": 256,
    "n_epochs": EPOCHS,
    "policy_kwargs": {"lstm_hidden_size": 64},
}


class Recall(gymnasium.Env[np.ndarray, int]):
    """A corridor: the first observation says which of two actions is right at its end; the others are ignored.

    Observations are (cue, noise, whether this is the end); the reward is 1 or -1, at the end.
    """

    def __init__(self, delay: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.delay = delay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.right, self.now = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ended = self.now == self.delay
        reward = (1.0 if action == self.right else -1.0) if ended else 0.0
        self.now += 1
        return self._seen(), reward, ended, False, {}

    def _seen(self) -> np.ndarray:
        cue = 2 * self.right - 1 if self.now == 0 else 0
        return np.array([cue, self.np_random.uniform(-1, 1), self.now == self.delay], np.float32)


class Rewards(BaseCallback):
    """The host's own ``rollout/ep_rew_mean``, the mean reward of the last 100 episodes, after every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.means.append(float(np.mean([episode["r"] for episode in self.model.ep_info_buffer])))


def run_of(delay: int) -> Run:
    def run(seed: int, start: bool) -> Sequence[float]:
        env = make_vec_env(Recall, ENVS, seed=seed, env_kwargs={"delay": delay})
        model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu", **SETTINGS)
        rewards = Rewards()
        steps = ROLLOUTS * ENVS * STEPS
        callbacks: list[BaseCallback] = [rewards]
        if start:  # it collects one rollout before the first
            steps += ENVS * STEPS
            callbacks.insert(0, CriticalStart(generator=torch.Generator().manual_seed(seed)))
        model.learn(steps, callback=callbacks)
        return rewards.means

    return run


def task(delay: int) -> Task:
    return Task(
        name=f"RecurrentPPO, MlpLstmPolicy, cue {delay} steps back",
        score="mean reward of the last 100 episodes; chance is 0, the best 1",
        length=delay + 1,
        updates=EPOCHS * ENVS * STEPS // SETTINGS["batch_size"],
        settings={**SETTINGS, "n_envs": ENVS, "rollouts": ROLLOUTS, "note": NOTE},
        run=run_of(delay),
        higher=True,
    )


NOTE = (
    "not the host's defaults: rate .001 (3e-4), LSTMs of 64 units (256), batches of 256 steps (128); the rollout on "
    "which the start is measured comes in addition"
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    measured("sb3_contrib", ["sb3-contrib", "stable-baselines3", "gymnasium", "numpy"], [task(30), task(5)])
