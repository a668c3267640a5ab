"""What every head is.

Shapes: `*` batch, `I` input features, `D` dimensions of the box that a head covers or reads, `K` heads, `O` outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Self

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhrl.functional import center_and_half_range


class Head(nn.Module, ABC):
    """A named module with parameters of its own.

    Args:
        in_features: `I`.
        space: a flat, bounded Box `[D]`: what an acting head covers, what a critic takes as its action.
    """

    center: Tensor
    half_range: Tensor

    def __init__(self, in_features: int, space: gym.spaces.Box) -> None:
        super().__init__()
        self.in_features = in_features
        bounds = [torch.as_tensor(bound, dtype=torch.float64) for bound in (space.low, space.high)]
        center, half_range = (x.to(torch.get_default_dtype()) for x in center_and_half_range(*bounds))
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)

    def stack_key(self) -> Hashable:
        """Heads of one class with equal keys are run together by its `stacked`; by default each is alone."""
        return id(self)


class ActionHead(Head):
    """A head that acts: features `[*, I]` to the action `[*, D]`, in env units and inside the box."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Map features `[*, I]` to the greedy action `[*, D]`."""

    @classmethod
    def stacked(cls, heads: Sequence[Self], features: Tensor, *, apart: bool = False) -> Tensor:
        """Run heads of one `stack_key`; here one by one. One head alone gives the bits of its `forward`.

        Args:
            heads: of this class.
            features: `[*, I]` for all; or `[K, *, I]`, one for each, if `apart`.
            apart: whether each has its own features.

        Returns:
            The heads' actions side by side, `[*, sum of D]`.
        """
        return torch.cat([head(own) for head, own in zip(heads, _each(features, len(heads), apart), strict=True)], -1)


class CriticHead(Head):
    """A head that judges: features and an action to action values, or to one state(-action) value."""

    @abstractmethod
    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Map features `[*, I]` and an action `[*, D]` in env units to values `[*, O]`; `D` may be 0."""

    @classmethod
    def stacked(cls, heads: Sequence[Self], features: Tensor, action: Tensor, *, apart: bool = False) -> Tensor:
        """Run heads of one `stack_key`; here one by one. One head alone gives the bits of its `forward`.

        Args:
            heads: of this class.
            features: `[*, I]` for all; or `[K, *, I]`, one for each, if `apart`.
            action: `[*, D]`, which all of them read.
            apart: whether each has its own features.

        Returns:
            Values `[*, K, O]`, where `O` is the largest number of outputs; heads of fewer end in zeros, which pass no
            gradient.
        """
        values = [head(own, action) for head, own in zip(heads, _each(features, len(heads), apart), strict=True)]
        size = max(value.shape[-1] for value in values)
        return torch.stack([F.pad(value, (0, size - value.shape[-1])) for value in values], -2)


def _each(features: Tensor, count: int, apart: bool) -> Sequence[Tensor]:
    """The features that each of `count` heads reads."""
    return features.unbind() if apart else [features] * count
