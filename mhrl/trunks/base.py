"""What every trunk is, and how raw observation leaves become float features.

Shapes: `*` batch, `D` numbers of a flattened leaf, `F` features.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Key = str | tuple[str, ...]


class Trunk(nn.Module, ABC):
    """Observation leaves to `features` `[*, F]`.

    Args:
        spaces: the observation leaves' spaces (Box of any dtype, or Discrete) by tensordict key.
    """

    out_features: int
    """`F`."""

    acting_trunk_grad: float = 1.0
    """Default `trunk_grad` of acting losses on this trunk."""

    dtype_carrier: Tensor

    def __init__(self, spaces: Mapping[Key, gym.Space]) -> None:
        super().__init__()
        self.spaces = dict(spaces)
        # What `.to(dtype)` leaves its mark on, also where there are no parameters (identity, target networks).
        self.register_buffer("dtype_carrier", torch.empty(0), persistent=False)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The observation leaves that the trunk reads."""
        return tuple(self.spaces)

    @abstractmethod
    def forward(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Map raw leaves, `[*, *leaf shape]` in the spaces' own dtypes, to `[*, F]` in the parameters' dtype."""


def is_byte_image(space: gym.Space) -> bool:
    """Whether `space` is pixels: a uint8 Box over the full range 0 to 255."""
    return (
        isinstance(space, gym.spaces.Box)
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def flat_size(space: gym.Space) -> int:
    """`D` of a leaf: the categories of a Discrete, the elements of a Box."""
    return int(space.n) if isinstance(space, gym.spaces.Discrete) else math.prod(shape_of(space))


def shape_of(space: gym.Space) -> tuple[int, ...]:
    """The shape of one raw leaf."""
    return tuple(space.shape or ())


def flatten(leaf: Tensor, space: gym.Space, dtype: torch.dtype) -> Tensor:
    """A raw leaf `[*, *shape]` as floats `[*, D]`: Discrete one-hot, pixels divided by 255."""
    if isinstance(space, gym.spaces.Discrete):
        return F.one_hot(leaf.long() - int(space.start), int(space.n)).to(dtype)
    leaf = leaf.to(dtype)
    if is_byte_image(space):
        leaf = leaf / 255
    match len(shape_of(space)):
        case 0:
            return leaf.unsqueeze(-1)
        case 1:
            return leaf
        case dims:
            return leaf.flatten(-dims)


def concatenate(parts: list[Tensor]) -> Tensor:
    """`[*, D_i]` to `[*, sum D_i]`, without a copy where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
