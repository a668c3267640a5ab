"""The head that judges: a state-action value, a state value, or the action values of one branch.

The state-action value is DDPG's (Lillicrap et al., 2016, section 3). A *branch*, an action value for each value of one
action dimension, is BDQ's (Tavakoli et al., 2018). A branch that reads the continuous action too is P-DQN's (Xiong et
al., 2018).
"""

from collections.abc import Hashable, Sequence
from typing import Self, final

import gymnasium as gym
import torch
from torch import Tensor

from mhrl.heads.base import CriticHead
from mhrl.layers import Activation, mlp, stack_key, stacked


@final
class QHead(CriticHead):
    """Hidden layers over the features and the action, which is mapped to [-1, 1] first.

    The map makes the critic's input independent of the env's action units (a torque in thousands would
    otherwise drown the features); gradients with respect to the action stay in env units.

    Args:
        in_features: `I`.
        space: the whole continuous action, a flat Box `[D]`; `D` is 0 where there is none.
        outputs: `O`: 1 for a state-action or state value, `n` for a branch of `n` values.
        widths: hidden layers of this head.
        activation: see `mhrl.layers.ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        final_init: the last layer's weights and biases are drawn uniformly from +- this (Lillicrap et al., section 7).
    """

    scale: Tensor

    def __init__(
        self,
        in_features: int,
        space: gym.spaces.Box,
        outputs: int = 1,
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
            outputs,
            activation=activation,
            layer_norm=layer_norm,
            final_init=final_init,
        )

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Map features `[*, I]` and action `[*, D]` to values `[*, O]`."""
        return self.body(self._inputs(features, action))

    def stack_key(self) -> Hashable:
        """Hidden layers and boxes alike; the numbers of outputs may differ."""
        return stack_key(self.body), *self.center.tolist(), *self.half_range.tolist()

    @classmethod
    def stacked(cls, heads: Sequence[Self], features: Tensor, action: Tensor, *, apart: bool = False) -> Tensor:
        """The layers together; the action is mapped and joined once for features that are shared."""
        return stacked([head.body for head in heads], heads[0]._inputs(features, action), apart=apart)

    def _inputs(self, features: Tensor, action: Tensor) -> Tensor:
        """What the layers read, `[*, I + D]`; the features may have further dimensions before those of the action."""
        if not self.center.numel():
            return features  # joining nothing would copy them
        action = (action.to(features.dtype) - self.center) / self.scale
        return torch.cat([features, action.expand(*features.shape[:-1], -1)], -1)
