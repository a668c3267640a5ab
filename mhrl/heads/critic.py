"""The state-action value of DDPG (Lillicrap et al., 2016, section 3)."""

from collections.abc import Sequence
from typing import final

import gymnasium as gym
import torch
from torch import Tensor

from mhrl.heads.base import CriticHead
from mhrl.layers import Activation, mlp


@final
class QHead(CriticHead):
    """Hidden layers over the features and the action, which is mapped to [-1, 1] first.

    The map makes the critic's input independent of the env's action units (a torque in thousands would
    otherwise drown the features); gradients with respect to the action stay in env units.

    Args:
        in_features: `I`.
        space: the whole continuous action, a flat Box `[D]`.
        widths: hidden layers of this head.
        activation: see `mhrl.layers.ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        final_init: the last layer's weights and biases are drawn uniformly from +- this (section 7 there).
    """

    scale: Tensor

    def __init__(
        self,
        in_features: int,
        space: gym.spaces.Box,
        widths: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        layer_norm: bool = False,
        final_init: float | None = 3e-3,
    ) -> None:
        super().__init__(in_features, space)
        # 1 where the dimension is a constant: there the action equals its centre.
        self.register_buffer("scale", torch.where(self.half_range > 0, self.half_range, 1.0), persistent=False)
        self.body = mlp(
            in_features + self.center.numel(),
            widths,
            1,
            activation=activation,
            layer_norm=layer_norm,
            final_init=final_init,
        )

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Map features `[*, I]` and action `[*, D]` to values `[*]`."""
        unit = (action.to(features.dtype) - self.center) / self.scale
        return self.body(torch.cat([features, unit], -1)).squeeze(-1)
