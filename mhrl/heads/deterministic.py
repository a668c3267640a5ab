"""The deterministic policy of DDPG (Lillicrap et al., 2016, section 3)."""

from collections.abc import Hashable, Sequence
from typing import Self, final

import gymnasium as gym
import torch
from torch import Tensor

from mhrl.functional import to_box
from mhrl.heads.base import ActionHead
from mhrl.layers import Activation, mlp, side_by_side, stack_key, stacked


@final
class DeterministicHead(ActionHead):
    """Hidden layers, a linear layer, tanh, then the affine map to the box, dimension by dimension.

    The last layer starts near zero, so that the first actions lie in the middle of the box, where tanh has a slope: a
    head that starts saturated may never leave its corner (section 7 there). A zero-width dimension is its constant and
    passes no gradient.

    Args:
        in_features: `I`.
        space: the covered dimensions, a flat Box `[D]`.
        widths: hidden layers of this head.
        activation: see `mhrl.layers.ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        final_init: the last layer's weights and biases are drawn uniformly from +- this.
    """

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
        self.body = mlp(
            in_features,
            widths,
            self.center.numel(),
            activation=activation,
            layer_norm=layer_norm,
            final_init=final_init,
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[*, I]` to the action `[*, D]`."""
        return to_box(torch.tanh(self.body(features)), self.center, self.half_range)

    def stack_key(self) -> Hashable:
        """Hidden layers alike; the boxes may differ."""
        return stack_key(self.body)

    @classmethod
    def stacked(cls, heads: Sequence[Self], features: Tensor, *, apart: bool = False) -> Tensor:
        """The layers together, then one tanh and one affine map over all dimensions."""
        raw = stacked([head.body for head in heads], features, apart=apart)
        raw = side_by_side(raw, [head.center.numel() for head in heads])
        center, half_range = (torch.cat(x) for x in zip(*((h.center, h.half_range) for h in heads), strict=True))
        return to_box(torch.tanh(raw), center, half_range)
