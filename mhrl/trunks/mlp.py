"""A multi-layer perceptron over the concatenated observation."""

from collections.abc import Mapping, Sequence
from typing import final

import gymnasium as gym
from torch import Tensor

from mhrl.layers import Activation, mlp
from mhrl.trunks.base import Key, Trunk
from mhrl.trunks.identity import IdentityTrunk


@final
class MLPTrunk(Trunk):
    """Flatten and concatenate the observation, then hidden layers; `F` is the last width.

    Args:
        spaces: the observation leaves' spaces by key.
        widths: sizes of the hidden layers.
        activation: see `mhrl.layers.ACTIVATIONS`.
        layer_norm: normalise each layer before its activation.
    """

    def __init__(
        self,
        spaces: Mapping[Key, gym.Space],
        widths: Sequence[int] = (128,),
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(spaces)
        self.encoder = IdentityTrunk(spaces)
        self.body = mlp(self.encoder.out_features, widths, activation=activation, layer_norm=layer_norm)
        self.out_features = widths[-1]

    def forward(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Map leaves `[*, *shape]` to `[*, F]`."""
        return self.body(self.encoder(observation))
