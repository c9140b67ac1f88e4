"""The callback in sb3-contrib's own RecurrentPPO."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from isornn.integrations.stable_baselines3 import CriticalStart

STEPS = 64


class Recall(gymnasium.Env):
    """A cue at the first of 20 steps, to be repeated at the last."""

    LENGTH = 20

    def __init__(self, keyed=False):
        box = gymnasium.spaces.Box(-5, 5, (2,), dtype=np.float32)
        self.observation_space = gymnasium.spaces.Dict({"cue": box}) if keyed else box
        self.action_space = gymnasium.spaces.Discrete(2)
        self.keyed = keyed

    def seen(self):
        observed = np.array([3.0 if self.at == 0 and self.cue else 1.0, self.at / 10], dtype=np.float32)
        return {"cue": observed} if self.keyed else observed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.cue = 0, int(self.np_random.integers(2))
        return self.seen(), {}

    def step(self, action):
        self.at += 1
        ended = self.at == self.LENGTH
        return self.seen(), float(ended and action == self.cue), ended, False, {}


class AtFirstRollout(BaseCallback):
    def _on_step(self):
        return True

    def _on_rollout_start(self):
        if not hasattr(self, "weights"):
            self.weights = {name: value.clone() for name, value in self.model.policy.state_dict().items()}
            self.starts, self.steps = self.model._last_episode_starts.copy(), self.model.num_timesteps
            self.episodes = len(self.model.ep_info_buffer)


def ppo(environment=None, policy="MlpLstmPolicy", **options):
    environment = Recall() if environment is None else environment
    options = {"n_steps": STEPS, "batch_size": STEPS, "n_epochs": 1, "seed": 0, "device": "cpu"} | options
    return RecurrentPPO(policy, environment, **options)


@pytest.mark.parametrize(
    ("policy_kwargs", "layers"),
    [
        ({}, 2),
        ({"enable_critic_lstm": False}, 1),
        ({"enable_critic_lstm": False, "shared_lstm": True}, 1),
        ({"n_lstm_layers": 2}, 4),
    ],
)
def test_actor_and_critic_are_started_before_the_first_rollout(policy_kwargs, layers):
    model, started, first = ppo(policy_kwargs=policy_kwargs), CriticalStart(), AtFirstRollout()
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(2 * STEPS, callback=[started, first])
    assert len(started.start.layers) == layers
    assert {layer.length for layer in started.start.layers} == {Recall.LENGTH}
    assert started.start.layers[0].input.means.numpy()[0] == pytest.approx(1.05, abs=0.06)
    changed = {name for name in before if not torch.equal(before[name], first.weights[name])}
    assert changed == {name for name in before if name.startswith("lstm_")}
    # The rollout that was measured counts, and nothing of it is left.
    assert first.steps == STEPS and first.starts.all() and first.episodes == 0
    assert model.num_timesteps == 2 * STEPS


def test_observations_in_a_dict_and_several_environments():
    model, started = ppo(Recall(keyed=True), "MultiInputLstmPolicy"), CriticalStart(200)
    model.learn(STEPS, callback=started)
    assert {layer.length for layer in started.start.layers} == {200}


def test_loaded_and_continued_policies_are_left_alone(tmp_path, capsys):
    model, again = ppo(), CriticalStart(verbose=1)
    model.learn(10 * STEPS)
    model.learn(1, callback=again, reset_num_timesteps=False)
    assert again.start.left_alone == f"{10 * STEPS} steps were made before"
    assert f"left as they are: {10 * STEPS} steps" in capsys.readouterr().out

    model.save(tmp_path / "saved.zip")
    loaded, first = RecurrentPPO.load(tmp_path / "saved.zip", env=Recall(), device="cpu"), AtFirstRollout()
    saved = {name: value.clone() for name, value in loaded.policy.state_dict().items()}
    loaded.learn(1, callback=[again, first])
    assert again.start.left_alone == "lstm_actor (LSTM) l0, lstm_critic (LSTM) l0 look trained"
    assert first.steps == 0 and all(torch.equal(saved[name], first.weights[name]) for name in saved)


@pytest.mark.parametrize("length", [1, -5, 0.5, float("nan"), float("inf"), True, "long"])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(ValueError, match=f"length: {length!r} is not allowed"):
        ppo().learn(2 * STEPS, callback=CriticalStart(length))


def test_a_policy_without_memory_is_refused():
    model = PPO("MlpPolicy", Recall(), n_steps=STEPS, batch_size=STEPS, device="cpu")
    with pytest.raises(ValueError, match="its policy is ActorCriticPolicy, which is not recurrent"):
        model.learn(1, callback=CriticalStart())


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sb3_contrib.common.recurrent.policies", None)
    monkeypatch.delitem(sys.modules, "isornn.integrations.stable_baselines3")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'isornn\[sb3\]'"):
        __import__("isornn.integrations.stable_baselines3")
