"""The network: one trunk, named heads, and the greedy policy that they make.

Shapes: `*` batch, `F` features, `D` dimensions of a head, `A` dimensions of the whole action.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from mhrl.envs import Leaf, split
from mhrl.trunks import IdentityTrunk, Key, Trunk

VALUE = "value"
"""Name of the critic head and of its loss."""


class ActorCritic(nn.Module, ABC):
    """What the DDPG family asks of a network: features once, then actions per head, then one value.

    `observation` and `action` are what `observe` and `stored_action` read from a batch; only the network
    looks inside.
    """

    @property
    @abstractmethod
    def acting(self) -> tuple[str, ...]:
        """Names of the acting heads."""

    @property
    @abstractmethod
    def modules_of(self) -> Mapping[str, tuple[str, ...]]:
        """For each acting head and for `value`: the parametrised modules that its output depends on."""

    @abstractmethod
    def observe(self, batch: TensorDictBase, *, following: bool = False) -> Mapping[Key, Tensor]:
        """The observation leaves of a batch, or those of its `next` entry."""

    @abstractmethod
    def stored_action(self, batch: TensorDictBase) -> Tensor:
        """The executed action of a batch, `[*, A]`."""

    @abstractmethod
    def trunk_features(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Run the trunk: `[*, F]`."""

    @abstractmethod
    def act(self, head: str, features: Tensor, observation: Mapping[Key, Tensor]) -> Tensor:
        """The greedy action of one head, `[*, D]`, in env units."""

    @abstractmethod
    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Put the heads' actions `{head: [*, D]}` together: `[*, A]`."""

    @abstractmethod
    def value(self, features: Tensor, observation: Mapping[Key, Tensor], action: Tensor) -> Tensor:
        """The state-action value `[*]` of `action` `[*, A]`."""


@dataclass(frozen=True)
class HeadSpec:
    """Where a head sits: the leaf and dimensions that it covers, and what it reads.

    Attributes:
        leaf: name of the action leaf.
        dims: the covered dimensions of the flattened leaf, in the order of the head's output.
        in_keys: `features`, `observation` (bypasses the trunk), or both.
    """

    leaf: str
    dims: tuple[int, ...]
    in_keys: tuple[str, ...] = ("features",)


@final
class Network(ActorCritic):
    """A trunk, acting heads that together cover every dimension of the action once, and a critic head.

    Heads are registered as `head_<name>`, so that a head may be called `type` or `train`.

    Args:
        trunk: observation leaves to features.
        heads: acting heads by name, and `value`, the critic.
        specs: where each head sits (the critic's `leaf` and `dims` are not read).
        actions: the env's action leaves; a single continuous leaf in this version.
    """

    order: Tensor

    def __init__(
        self, trunk: Trunk, heads: Mapping[str, nn.Module], specs: Mapping[str, HeadSpec], actions: Sequence[Leaf]
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.encoder = IdentityTrunk(trunk.spaces)
        self.specs = dict(specs)
        self.leaves = tuple(actions)
        for name, head in heads.items():
            self.add_module(f"head_{name}", head)
        (self.leaf,) = self.leaves
        covered = [dim for name in self.acting for dim in self.specs[name].dims]
        # The position in the concatenated heads' outputs of each dimension of the leaf.
        self.register_buffer("order", torch.as_tensor(np.argsort(covered)), persistent=False)
        self._in_order = covered == sorted(covered)

    @property
    def acting(self) -> tuple[str, ...]:
        """Names of the acting heads."""
        return tuple(name for name in self.specs if name != VALUE)

    @property
    def modules_of(self) -> Mapping[str, tuple[str, ...]]:
        """For each head: `head_<name>`, and `trunk` where it reads features of a trunk with parameters."""
        trained = any(True for _ in self.trunk.parameters())
        return {
            name: (f"head_{name}", "trunk") if trained and "features" in spec.in_keys else (f"head_{name}",)
            for name, spec in self.specs.items()
        }

    def head(self, name: str) -> nn.Module:
        """The head called `name`."""
        return self.get_submodule(f"head_{name}")

    def observe(self, batch: TensorDictBase, *, following: bool = False) -> Mapping[Key, Tensor]:
        """The observation leaves of a batch, or those of its `next` entry, in the spaces' own dtypes."""
        if following:
            batch = batch.get("next")
        return {key: batch.get(key) for key in self.trunk.keys}

    def stored_action(self, batch: TensorDictBase) -> Tensor:
        """The executed action `[*, A]`, flattened row-major."""
        action = batch.get(self.leaf.key)
        dims = len(self.leaf.space.shape or ())
        return action if dims == 1 else action.flatten(-dims) if dims else action.unsqueeze(-1)

    def trunk_features(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Run the trunk: `[*, F]`."""
        return self.trunk(observation)

    def act(self, head: str, features: Tensor, observation: Mapping[Key, Tensor]) -> Tensor:
        """The greedy action of one head, `[*, D]`, in env units."""
        return self.head(head)(self._read(head, features, observation))

    def assemble(self, actions: Mapping[str, Tensor]) -> Tensor:
        """Put the heads' actions `{head: [*, D]}` in the order of the leaf's dimensions: `[*, A]`."""
        parts = [actions[name] for name in self.acting]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return joined if self._in_order else joined[..., self.order]

    def value(self, features: Tensor, observation: Mapping[Key, Tensor], action: Tensor) -> Tensor:
        """The state-action value `[*]` of `action` `[*, A]`."""
        return self.head(VALUE)(self._read(VALUE, features, observation), action)

    def _read(self, head: str, features: Tensor, observation: Mapping[Key, Tensor]) -> Tensor:
        """What a head reads, by its `in_keys`."""
        match self.specs[head].in_keys:
            case ("features",):
                return features
            case ("observation",):
                return self.encoder(observation)
            case _:
                return torch.cat([features, self.encoder(observation)], -1)


class ObservationNormaliser(Protocol):
    """What a policy asks of a normaliser (`mhrl.normaliser`)."""

    def observation(self, leaves: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Raw observation leaves `{key: [*, *shape]}` as the network reads them."""


@final
class GreedyPolicy(TensorDictModuleBase):
    """The network's greedy action as a TensorDictModule (torchrl's collectors run it) and as a plain call.

    Args:
        network: the network that acts; shared, not copied.
        normaliser: what observations pass through first; shared, and never updated here. None: nothing.
    """

    def __init__(self, network: Network, normaliser: ObservationNormaliser | None = None) -> None:
        super().__init__()
        self.network = network
        self.normaliser = normaliser
        self.leaf = network.leaf
        self.in_keys = list(network.trunk.keys)
        self.out_keys = [network.leaf.key]

    @torch.no_grad()
    def act(
        self, observation: Mapping[Key, Tensor], frames: int = 0, is_init: Tensor | None = None
    ) -> dict[Key, Tensor]:
        """Greedy action leaves `{key: [*, *leaf shape]}` for observation leaves `{key: [*, *shape]}`.

        Args:
            observation: raw leaves, on any device.
            frames: not read; a policy that explores has a schedule here.
            is_init: not read; a policy that explores may have a memory, which ends with an episode.
        """
        device = self.network.order.device
        if self.normaliser is not None:
            observation = self.normaliser.observation(observation)
        observation = {key: observation[key].to(device) for key in self.in_keys}
        features = self.network.trunk_features(observation)
        actions = {name: self.network.act(name, features, observation) for name in self.network.acting}
        action = self.network.assemble(actions)
        return {self.leaf.key: action.reshape(*action.shape[:-1], *(self.leaf.space.shape or ()))}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the greedy action into `tensordict`, in the action space's dtype and inside the space."""
        action = self.act({key: tensordict.get(key) for key in self.in_keys})[self.leaf.key]
        return tensordict.set(self.leaf.key, conform(action, self.leaf.space))


def leaf_tensors(observation: np.ndarray | Mapping[str, np.ndarray], leaves: Sequence[Leaf]) -> dict[Key, Tensor]:
    """A canonical env's observation, or a batch of them, as a policy reads it; shares the memory."""
    return {leaf.key: torch.as_tensor(values) for leaf, values in zip(leaves, split(observation, leaves), strict=True)}


def conform(action: Tensor, space: gym.Space) -> Tensor:
    """`action` `[*, *shape]` in the dtype of a Box and inside it; NaN passes through. `mhrl.envs.conform` for tensors.

    Clipped after the cast: float32(0.3) lies above the bound of a float64 Box that ends at 0.3.
    """
    assert isinstance(space, gym.spaces.Box)
    low, high = (torch.as_tensor(bound, device=action.device) for bound in (space.low, space.high))
    return torch.clamp(action.to(low.dtype), low, high)


__all__ = [
    "VALUE",
    "ActorCritic",
    "GreedyPolicy",
    "HeadSpec",
    "Network",
    "ObservationNormaliser",
    "conform",
    "leaf_tensors",
]
