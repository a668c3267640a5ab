"""tianshou's DDPG as a contestant."""

import warnings
from collections.abc import Mapping

import gymnasium as gym
import numpy as np
import torch
from _bench_contestant import Peer
from _bench_task import Task
from tianshou.algorithm import DDPG
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainer, OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousCritic
from torch import nn

warnings.filterwarnings("ignore", category=DeprecationWarning)  # of which tianshou lets every library's through


class Tianshou(Peer):
    """`OffPolicyTrainer.execute_epoch`, without tests and logs."""

    name = "tianshou"
    delays = False

    def __init__(self, task: Task) -> None:
        torch.manual_seed(task.seed)
        np.random.seed(task.seed)
        self.envs = DummyVectorEnv([lambda: gym.make(task.env)])
        self.envs.seed(task.seed)
        observation, action = self.envs.observation_space[0], self.envs.action_space[0]
        action.seed(task.seed)
        actor = ContinuousActorDeterministic(
            preprocess_net=Net(state_shape=observation.shape, hidden_sizes=task.widths), action_shape=action.shape
        )
        critic = ContinuousCritic(
            preprocess_net=Net(
                state_shape=observation.shape, action_shape=action.shape, hidden_sizes=task.widths, concat=True
            )
        )
        self.policy = ContinuousDeterministicPolicy(
            actor=actor,
            exploration_noise=GaussianNoise(sigma=task.std),
            action_space=action,  # in [-1, 1]
        )
        self.algorithm = DDPG(
            policy=self.policy,
            policy_optim=AdamOptimizerFactory(lr=task.lr),
            critic=critic,
            critic_optim=AdamOptimizerFactory(lr=task.lr),
            tau=task.tau,
            gamma=task.gamma,
        )
        buffer = VectorReplayBuffer(task.capacity, 1)
        self.collector = Collector(self.algorithm, self.envs, buffer, exploration_noise=True)
        params = OffPolicyTrainerParams(
            training_collector=self.collector,
            collection_step_num_env_steps=1,
            batch_size=task.batch,
            verbose=False,
            show_progress=False,
        )
        self.trainer = OffPolicyTrainer(self.algorithm, params)
        self.trainer.reset()
        self.learning_starts = task.learning_starts

    def fill(self) -> None:
        """See `Contestant`."""
        self.collector.collect(n_step=self.learning_starts, random=True)

    def advance(self, steps: int) -> None:
        """See `Contestant`."""
        self.trainer.params.epoch_num_steps = steps
        self.trainer.execute_epoch()

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """See `Contestant`."""
        return self.policy.map_action(self.policy(Batch(obs=observations, info={})).act.numpy())

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """See `Contestant`."""
        return {"actor": self.policy.actor, "critic": self.algorithm.critic}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """See `Peer`."""
        return {"actor": self.algorithm.policy_optim._optim, "critic": self.algorithm.critic_optim._optim}

    def close(self) -> None:
        """See `Contestant`."""
        self.envs.close()
