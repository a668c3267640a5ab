"""skrl's DDPG as a contestant."""

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from _bench_contestant import Peer, half_range
from _bench_task import Task
from skrl.agents.torch.ddpg import DDPG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model
from skrl.resources.noises.torch import GaussianNoise
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor, nn


class Actor(DeterministicMixin, Model):
    """Observation to action, tanh and the half-range of a symmetric box."""

    def __init__(self, env: Any, widths: Sequence[int]) -> None:  # noqa: ANN401
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = perceptron(self.num_observations, widths, self.num_actions)
        self.half_range = half_range(env.action_space.low, env.action_space.high)

    def compute(self, inputs: Mapping[str, Tensor], role: str) -> tuple[Tensor, dict[str, Any]]:
        """Called by skrl."""
        return torch.tanh(self.net(inputs["observations"])) * self.half_range, {}


class Critic(DeterministicMixin, Model):
    """Observation and action to a value."""

    def __init__(self, env: Any, widths: Sequence[int]) -> None:  # noqa: ANN401
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = perceptron(self.num_observations + self.num_actions, widths, 1)

    def compute(self, inputs: Mapping[str, Tensor], role: str) -> tuple[Tensor, dict[str, Any]]:
        """Called by skrl."""
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], 1)), {}


def perceptron(inputs: int, widths: Sequence[int], outputs: int) -> nn.Sequential:
    """Hidden layers of ReLU, and a linear one."""
    sizes, layers = [inputs, *widths], []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Skrl(Peer):
    """`SequentialTrainer.train`, without TensorBoard and checkpoints; each call begins with a reset of the env."""

    name = "skrl"
    delays = False

    def __init__(self, task: Task) -> None:
        logging.getLogger("skrl").setLevel(logging.ERROR)
        torch.manual_seed(task.seed)
        self.env = env = wrap_env(gym.make(task.env), verbose=False)
        env._seed = task.seed  # of the first reset; skrl takes it from a setting of the whole process
        models = {name: Actor(env, task.widths) for name in ("policy", "target_policy")}
        models |= {name: Critic(env, task.widths) for name in ("critic", "target_critic")}
        noise = {"mean": 0.0, "std": task.std * models["policy"].half_range, "device": "cpu"}
        self.agent = DDPG(
            models=models,
            # With replacement, as the others draw: without, skrl shuffles all that is held for each batch.
            memory=RandomMemory(memory_size=task.capacity, num_envs=1, device="cpu", replacement=True),
            observation_space=env.observation_space,
            action_space=env.action_space,
            device="cpu",
            cfg={
                "batch_size": task.batch,
                "discount_factor": task.gamma,
                "polyak": task.tau,
                "learning_rate": task.lr,
                "exploration_noise": GaussianNoise,
                "exploration_noise_kwargs": noise,
                "experiment": {"write_interval": 0, "checkpoint_interval": 0},
            },
        )
        cfg = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
        self.trainer = SequentialTrainer(env=env, agents=self.agent, cfg=cfg)
        self.learning_starts = task.learning_starts

    def fill(self) -> None:
        """See `Contestant`."""
        self.agent.cfg.random_timesteps = self.agent.cfg.learning_starts = self.learning_starts
        self.advance(self.learning_starts)
        self.agent.cfg.random_timesteps = self.agent.cfg.learning_starts = 0  # each call of `train` counts from 0

    def advance(self, steps: int) -> None:
        """See `Contestant`."""
        self.trainer.cfg.timesteps = steps
        self.trainer.train()

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """See `Contestant`."""
        seen = torch.as_tensor(observations, dtype=torch.float32)
        return self.agent.policy.act({"observations": seen}, role="policy")[0].numpy()

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """See `Contestant`."""
        return {"actor": self.agent.policy, "critic": self.agent.critic}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """See `Peer`."""
        return {"actor": self.agent.policy_optimizer, "critic": self.agent.critic_optimizer}

    def close(self) -> None:
        """See `Contestant`."""
        self.env.close()
