"""The normaliser: what observations and rewards look like to the network. One object acts, learns and evaluates.

Replay and everything that is logged stay raw: observations are normalised where the policy or a loss reads them.

Shapes: `*` batch, `T` time, `N` envs, `D` columns (the elements of all float leaves, then the discounted return).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDictBase
from torch import Tensor, nn

from mhrl.envs import Key, Leaf, next_key

RewardRule = Literal["none", "return_std"]
REWARD = ("next", "reward")


class Normaliser(nn.Module, ABC):
    """Statistics move in `update` only, which the loop calls once for each rollout.

    Args:
        observations: the env's observation leaves.
        num_envs: `N`.
    """

    def __init__(self, observations: Sequence[Leaf], num_envs: int) -> None:
        super().__init__()

    @abstractmethod
    def update(self, rollout: TensorDictBase) -> None:
        """Learn from a raw rollout `[T, N]`: from the observations that were acted on, each transition once."""

    @abstractmethod
    def observation(self, leaves: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Raw observation leaves `{key: [*, *shape]}` as the network reads them."""

    @abstractmethod
    def batch(self, batch: TensorDictBase) -> TensorDictBase:
        """A raw batch `[*]` as the objective reads it: observation, next observation and reward; `batch` stays raw."""


@final
class IdentityNormaliser(Normaliser):
    """Leaves everything as it is, at no cost."""

    def update(self, rollout: TensorDictBase) -> None:
        """Nothing is learned."""

    def observation(self, leaves: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """The same object."""
        return leaves

    def batch(self, batch: TensorDictBase) -> TensorDictBase:
        """The same object."""
        return batch


@final
class RunningNormaliser(Normaliser):
    """`clip((x - mean) / sqrt(var + eps))` for each element of each float Box leaf; other leaves are not touched.

    Mean and variance (population) are those of all transitions so far. Rollouts are merged by the pairwise update of
    Chan, Golub & LeVeque (1979), eq. 2.1, which for a single transition is Welford's (1962), in float64: over `n` old
    and `m` new rows, with `d = mean_new - mean`,

        mean <- mean + d m / (n + m),      m2 <- m2 + m2_new + d^2 n m / (n + m),      var = m2 / n.

    An element that has not varied yet is only centred. Before any data, observations are left as they are.
    Everything is computed in float64 and rounded once, to float32, the same way in a batch of any size. Statistics stay
    on the CPU, where rollouts are; entries are normalised on the device where they are.

    `reward=return_std` divides rewards by `sqrt(var + eps)` of the discounted return `R <- gamma R + r` of each env, 0
    at the start of an episode (Engstrom et al., 2020, algorithm 1, without its clipping, so that sums over n steps may
    be scaled afterwards). Rewards are not centred: that would change the task. Values and losses, and metrics of
    them, are then in units of the scaled reward; returns of episodes and evaluations stay raw.

    Args:
        observations: the env's observation leaves.
        num_envs: `N`.
        gamma: discount of the return whose spread scales the reward.
        eps: added to the variance.
        clip: bound of normalised observations; infinity for none.
        reward: `none`, or `return_std`.
        reward_scale: constant factor on the reward, whatever `reward` is.

    Attributes:
        count: transitions so far.

    Raises:
        ValueError: naming the field that is out of range.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    returns: Tensor

    def __init__(
        self,
        observations: Sequence[Leaf],
        num_envs: int,
        gamma: float,
        eps: float = 1e-8,
        clip: float = 10.0,
        reward: RewardRule = "none",
        reward_scale: float = 1.0,
    ) -> None:
        super().__init__(observations, num_envs)
        for name, value in (("eps", eps), ("clip", clip), ("reward_scale", reward_scale)):
            if not value > 0 or (value == math.inf and name != "clip"):
                raise ValueError(f"normaliser.{name} is {value}: a number > 0 is expected")
        if not 0 <= gamma <= 1:
            raise ValueError(f"normaliser.gamma is {gamma}: a number from 0 to 1 is expected")
        if reward not in ("none", "return_std"):
            raise ValueError(f"normaliser.reward is {reward!r}: none or return_std is expected")
        self.gamma, self.eps, self.clip, self.reward_scale = gamma, eps, clip, reward_scale
        self.scales_reward = reward == "return_std"
        self.columns: dict[Key, slice] = {}
        self.shapes: dict[Key, tuple[int, ...]] = {}
        size = 0
        for leaf in observations:
            if isinstance(leaf.space, Box) and leaf.space.dtype.kind == "f":
                self.shapes[leaf.key] = leaf.space.shape
                self.columns[leaf.key] = slice(size, size := size + int(np.prod(leaf.space.shape)))
        size += self.scales_reward
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("returns", torch.zeros(num_envs, dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """What each column is divided by, `[D]`; 1 where it has not varied."""
        var = self.m2 / self.count.clamp(min=1)
        return torch.where(var > 0, (var + self.eps).sqrt(), 1.0)

    def update(self, rollout: TensorDictBase) -> None:
        """Merge a rollout `[T, N]` into the statistics; `T` is 0 where the collector left every row out."""
        count = rollout.batch_size.numel()
        if not count:
            return
        rows = [rollout.get(key).double().reshape(count, -1) for key in self.columns]
        if self.scales_reward:
            rows.append(self._discounted_returns(rollout).reshape(-1, 1))
        if rows:
            new = torch.cat(rows, -1)
            mean = new.mean(0)
            difference, weight = mean - self.mean, count / (int(self.count) + count)
            self.m2 += (new - mean).square().sum(0) + difference.square() * (weight * int(self.count))
            self.mean += difference * weight
        self.count += count

    def observation(self, leaves: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Normalised float leaves in float32, on their own device, beside the others."""
        if not self.count:
            return leaves
        std = self.std
        return {key: self._normalise(key, leaf, std) if key in self.columns else leaf for key, leaf in leaves.items()}

    def batch(self, batch: TensorDictBase) -> TensorDictBase:
        """A new TensorDict with normalised entries, which shares all others with `batch`."""
        batch, std = batch.copy(), self.std
        for key in self.columns if self.count else ():
            for place in (key, next_key(key)):
                batch.set(place, self._normalise(key, batch.get(place), std))
        scale = self.reward_scale / std[-1] if self.scales_reward else self.reward_scale
        return batch.set(REWARD, batch.get(REWARD) * scale)

    def _normalise(self, key: Key, leaf: Tensor, std: Tensor) -> Tensor:
        """One raw leaf `[*, *shape]` in float32."""
        columns, shape = self.columns[key], self.shapes[key]
        mean, std = (column[columns].view(shape).to(leaf.device) for column in (self.mean, std))
        return ((leaf.double() - mean) / std).clamp(-self.clip, self.clip).float()

    def _discounted_returns(self, rollout: TensorDictBase) -> Tensor:
        """The return of each env after each transition, `[T, N]`; carried on, and 0 where an episode starts."""
        found = []
        for reward, is_init in zip(rollout.get(REWARD).double(), rollout.get("is_init"), strict=True):
            self.returns.masked_fill_(is_init.squeeze(-1), 0.0).mul_(self.gamma).add_(reward.squeeze(-1))
            found.append(self.returns.clone())
        return torch.stack(found)
