"""A convolutional trunk for pixels, with any other observation leaves beside them."""

from collections.abc import Mapping, Sequence
from typing import final

import gymnasium as gym
import torch
from torch import Tensor, nn
from torchrl.modules import ConvNet

from mhrl.layers import Activation, activation_class, mlp
from mhrl.trunks.base import Key, Trunk, concatenate, flat_size, flatten, is_byte_image, shape_of


@final
class CNNTrunk(Trunk):
    """A convolutional encoder per image leaf; other leaves are flattened; all concatenated, then hidden layers.

    An image is a uint8 Box of 0 to 255 with two or three axes; its channel axis is the shorter one of the
    first and the last. The defaults are the encoder of Mnih et al. (2015), made for images of 84 by 84.
    Acting losses do not train it unless asked to (`acting_trunk_grad` 0), as usual in learning from pixels.

    Args:
        spaces: the observation leaves' spaces by key.
        channels: output channels of each convolution.
        kernels: kernel size of each convolution.
        strides: stride of each convolution.
        widths: hidden layers after the concatenation.
        activation: see `mhrl.layers.ACTIVATIONS`.
        layer_norm: normalise each hidden layer of `widths` before its activation.

    Raises:
        ValueError: if there is no image leaf, or an image is smaller than the kernels need.
    """

    acting_trunk_grad = 0.0

    def __init__(
        self,
        spaces: Mapping[Key, gym.Space],
        channels: Sequence[int] = (32, 64, 64),
        kernels: Sequence[int] = (8, 4, 3),
        strides: Sequence[int] = (4, 2, 1),
        widths: Sequence[int] = (128,),
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(spaces)
        if not len(channels) == len(kernels) == len(strides):
            raise ValueError(f"channels {channels}, kernels {kernels} and strides {strides} must have one length")
        self.images = [key for key, s in self.spaces.items() if is_byte_image(s) and len(shape_of(s)) in (2, 3)]
        if not self.images:
            raise ValueError(f"trunk cnn needs an image (a uint8 Box of 0 to 255 with 2 or 3 axes), got {self.spaces}")
        self.convolutions = nn.ModuleList()
        size = sum(flat_size(space) for key, space in self.spaces.items() if key not in self.images)
        for key in self.images:
            shape = shape_of(self.spaces[key])
            image = _channels_first(torch.zeros(1, *shape), shape)
            convolution = ConvNet(
                in_features=image.shape[1],
                num_cells=list(channels),
                kernel_sizes=list(kernels),
                strides=list(strides),
                activation_class=activation_class(activation),
            )
            try:
                size += convolution(image).shape[-1]
            except RuntimeError as error:
                raise ValueError(
                    f"image {key!r} of shape {shape} is too small for kernels {list(kernels)} with "
                    f"strides {list(strides)}: set trunk.kernels and trunk.strides"
                ) from error
            self.convolutions.append(convolution)
        self.body = mlp(size, widths, activation=activation, layer_norm=layer_norm)
        self.out_features = widths[-1]

    def forward(self, observation: Mapping[Key, Tensor]) -> Tensor:
        """Map leaves `[*, *shape]` to `[*, F]`."""
        dtype = self.dtype_carrier.dtype
        parts = []
        for key, convolution in zip(self.images, self.convolutions, strict=True):
            image = _channels_first(observation[key].to(dtype) / 255, shape_of(self.spaces[key]))
            parts.append(convolution(image))
        for key, space in self.spaces.items():
            if key not in self.images:
                parts.append(flatten(observation[key], space, dtype))
        return self.body(concatenate(parts))


def _channels_first(image: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`[*, H, W]`, `[*, H, W, C]` or `[*, C, H, W]` to `[*, C, H, W]`."""
    if len(shape) == 2:
        return image.unsqueeze(-3)
    return image.movedim(-1, -3) if shape[-1] < shape[0] else image
