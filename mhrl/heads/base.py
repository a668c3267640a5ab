"""What every head is.

Shapes: `*` batch, `I` input features, `D` dimensions of the box that a head covers or reads.
"""

from abc import ABC, abstractmethod

import gymnasium as gym
import torch
from torch import Tensor, nn

from mhrl.functional import center_and_half_range


class Head(nn.Module, ABC):
    """A named module with parameters of its own.

    Args:
        in_features: `I`.
        space: a flat, bounded Box `[D]`: what an acting head covers, what the critic takes as its action.
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


class ActionHead(Head):
    """A head that acts: features `[*, I]` to the action `[*, D]`, in env units and inside the box."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Map features `[*, I]` to the greedy action `[*, D]`."""


class CriticHead(Head):
    """A head that judges: features and an action to the state-action value."""

    @abstractmethod
    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Map features `[*, I]` and an action `[*, D]` in env units to values `[*]`."""
