"""The identity trunk: no parameters, so that every head has a network of its own."""

from collections.abc import Mapping
from typing import final

import gymnasium as gym
from torch import Tensor

from mhrl.trunks.base import Key, Trunk, concatenate, flat_size, flatten


@final
class IdentityTrunk(Trunk):
    """Flatten every observation leaf and concatenate them; `F` is their total size."""

    def __init__(self, spaces: Mapping[Key, gym.Space]) -> None:
        super().__init__(spaces)
        self.out_features = sum(map(flat_size, self.spaces.values()))

    def forward(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Map leaves `[*, *shape]` to `[*, F]`."""
        dtype = self.dtype_carrier.dtype
        return concatenate([flatten(observation[key], space, dtype) for key, space in self.spaces.items()])
