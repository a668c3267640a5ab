"""stable-baselines3's DDPG as a contestant."""

from collections.abc import Mapping
from typing import cast

import gymnasium as gym
import numpy as np
import torch
from _bench_contestant import Peer
from _bench_task import Task
from stable_baselines3 import DDPG
from stable_baselines3.common.noise import NormalActionNoise
from torch import nn

NEVER = 10**9


class StableBaselines3(Peer):
    """`DDPG.learn`, without logs."""

    name = "stable-baselines3"

    def __init__(self, task: Task) -> None:
        self.env = gym.make(task.env)
        shape = cast(gym.spaces.Box, self.env.action_space).shape
        self.model = DDPG(
            "MlpPolicy",
            self.env,
            learning_rate=task.lr,
            buffer_size=task.capacity,
            learning_starts=task.learning_starts,
            batch_size=task.batch,
            tau=task.tau,
            gamma=task.gamma,
            action_noise=NormalActionNoise(np.zeros(shape), np.full(shape, task.std)),  # in the policy's units, [-1, 1]
            policy_kwargs={"net_arch": list(task.widths)},
            seed=task.seed,
            device="cpu",
        )
        self.model.policy_delay = task.policy_delay
        self.learning_starts = task.learning_starts

    def fill(self) -> None:
        """See `Contestant`."""
        self.advance(self.learning_starts)

    def advance(self, steps: int) -> None:
        """See `Contestant`."""
        self.model.learn(steps, log_interval=NEVER, reset_num_timesteps=False)

    def act(self, observations: np.ndarray) -> np.ndarray:
        """See `Contestant`."""
        return self.model.predict(observations, deterministic=True)[0]

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """See `Contestant`."""
        return {"actor": self.model.actor, "critic": self.model.critic}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """See `Peer`."""
        return {"actor": self.model.actor.optimizer, "critic": self.model.critic.optimizer}

    def close(self) -> None:
        """See `Contestant`."""
        self.env.close()
