"""The greedy policy that a network's heads make.

Shapes: `*` batch, `A` continuous dimensions of the action, `K` branches, `n` most values of a branch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from mhrl.envs import EmptyMaskError, Key, Leaf, join, split
from mhrl.functional import best_index
from mhrl.network import Network


class ObservationNormaliser(Protocol):
    """What a policy asks of a normaliser (`mhrl.normaliser`)."""

    def observation(self, leaves: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Raw observation leaves `{key: [*, *shape]}` as the network reads them."""


@dataclass(frozen=True)
class Choice:
    """What all acting heads decide, in flat order (`mhrl.layout`).

    Attributes:
        action: continuous dimensions, `[*, A]`, in env units.
        index: of each branch's value, `[*, K]`.
        mask: which values the env allows, bool `[*, K, n]`; None where it allows all.
    """

    action: Tensor
    index: Tensor
    mask: Tensor | None


@final
class GreedyPolicy(TensorDictModuleBase):
    """The network's greedy action as a TensorDictModule (torchrl's collectors run it) and as a plain call.

    Proposing heads act; then each branch takes the value that its critic rates highest beside their action, among
    those that the env allows.

    Args:
        network: the network that acts; shared, not copied.
        normaliser: what observations pass through first; shared, and never updated here. None: nothing.
    """

    def __init__(self, network: Network, normaliser: ObservationNormaliser | None = None) -> None:
        super().__init__()
        self.network = network
        self.normaliser = normaliser
        self.in_keys = [*network.trunk.keys, *(leaf.key for leaf in network.layout.masks)]
        self.out_keys = [leaf.key for leaf in network.layout.leaves]

    @torch.no_grad()
    def choose(self, observation: Mapping[Key, Tensor]) -> Choice:
        """What the heads decide for raw observation leaves `{key: [*, *shape]}`, on the network's device.

        Raises:
            EmptyMaskError: if the env allows a branch nothing, naming the first such env (row) and head.
        """
        network = self.network
        device = network.low.device
        if self.normaliser is not None:
            observation = self.normaliser.observation(observation)
        observation = {key: observation[key].to(device) for key in self.in_keys}
        features = network.trunk_features(observation)
        action = network.act(features, observation)
        if not network.branches:
            return Choice(action, network.layout.no_index.expand(*action.shape[:-1], 0), None)
        mask = network.mask(observation)
        if mask is not None:
            self._check(mask)
        values = network.action_values(features, observation, action, copies=1).squeeze(-3)
        return Choice(action, best_index(values, mask), mask)

    def _check(self, mask: Tensor) -> None:
        """Refuse a mask `[*, K, n]` that allows a branch nothing."""
        empty = ~mask.any(-1).reshape(-1, len(self.network.branches))
        if empty.any():
            row, branch = empty.nonzero()[0].tolist()
            raise EmptyMaskError(row, self.network.branches[branch])

    def act(
        self, observation: Mapping[Key, Tensor], frames: int = 0, is_init: Tensor | None = None
    ) -> dict[Key, Tensor]:
        """Greedy action leaves `{key: [*, *leaf shape]}` for observation leaves `{key: [*, *shape]}`.

        Args:
            observation: raw leaves, on any device.
            frames: not read; a policy that explores has a schedule here.
            is_init: not read; a policy that explores may have a memory, which ends with an episode.

        Raises:
            EmptyMaskError: see `choose`.
        """
        choice = self.choose(observation)
        return self.network.write(choice.action, choice.index)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the greedy action into `tensordict`, in the leaves' dtypes and inside their spaces."""
        actions = self.act({key: tensordict.get(key) for key in self.in_keys})
        return write_actions(tensordict, actions, self.network.layout.leaves)


def write_actions(tensordict: TensorDictBase, actions: Mapping[Key, Tensor], leaves: Sequence[Leaf]) -> TensorDictBase:
    """Write action leaves into `tensordict`, in their spaces' dtypes and inside them."""
    for leaf in leaves:
        tensordict.set(leaf.key, conform(actions[leaf.key], leaf.box))
    return tensordict


def act_once(
    policy: GreedyPolicy,
    observation: np.ndarray | Mapping[str, np.ndarray],
    observation_leaves: Sequence[Leaf],
    action_leaves: Sequence[Leaf],
) -> Any:  # noqa: ANN401
    """The greedy action for one observation of a canonical env, as its `step` takes it.

    Args:
        policy: acts.
        observation: as the env returns it.
        observation_leaves: what it consists of, masks too.
        action_leaves: what the action consists of.
    """
    seen = leaf_tensors(observation, observation_leaves)
    proposed = policy.act({key: value.unsqueeze(0) for key, value in seen.items()})
    executed = [conform(proposed[leaf.key][0], leaf.box).numpy(force=True) for leaf in action_leaves]
    return join(executed, action_leaves)


def leaf_tensors(observation: np.ndarray | Mapping[str, np.ndarray], leaves: Sequence[Leaf]) -> dict[Key, Tensor]:
    """A canonical env's observation, or a batch of them, as a policy reads it; shares the memory."""
    return {leaf.key: torch.as_tensor(values) for leaf, values in zip(leaves, split(observation, leaves), strict=True)}


def conform(action: Tensor, space: gym.spaces.Box) -> Tensor:
    """`action` `[*, *shape]` in the dtype of a Box and inside it; NaN passes through. `mhrl.envs.conform` for tensors.

    Floats are clipped after the cast, for float32(0.3) lies above the bound of a float64 Box that ends at 0.3; and
    rounded and clipped before it where the Box is one of integers, for a narrow integer wraps round.
    """
    low, high = (torch.as_tensor(bound, device=action.device) for bound in (space.low, space.high))
    if low.is_floating_point():
        return torch.clamp(action.to(low.dtype), low, high)
    whole = action.round() if action.is_floating_point() else action
    return torch.clamp(whole, low.to(whole.dtype), high.to(whole.dtype)).to(low.dtype)
