"""The policy that collects.

Shapes: `N` envs.
"""

from collections.abc import Mapping
from typing import final

import torch
from tensordict.nn import TensorDictSequential
from torch import Tensor

from mhrl.exploration.noise import GaussianNoise
from mhrl.network import GreedyPolicy
from mhrl.trunks import Key


@final
class ExploringPolicy(TensorDictSequential):
    """normaliser > trunk > action heads > exploration: what collects.

    Args:
        greedy: the network's policy.
        noise: what is added to its action.
    """

    def __init__(self, greedy: GreedyPolicy, noise: GaussianNoise) -> None:
        super().__init__(greedy, noise)

    @property
    def greedy(self) -> GreedyPolicy:
        """The network's policy."""
        return self.module[0]

    @property
    def noise(self) -> GaussianNoise:
        """What is added to its action."""
        return self.module[1]

    @torch.no_grad()
    def act(self, observation: Mapping[Key, Tensor], frames: int, is_init: Tensor | None = None) -> dict[Key, Tensor]:
        """Noisy action leaves `{key: [N, *leaf shape]}`.

        Args:
            observation: raw leaves.
            frames: env transitions so far, for the schedule.
            is_init: bool `[N]`, True where an episode starts; None: nowhere.
        """
        self.noise.step(frames)
        return {key: self.noise.perturb(action, is_init) for key, action in self.greedy.act(observation).items()}
