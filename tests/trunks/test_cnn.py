import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch.nn import functional as F

from mhrl.trunks import CNNTrunk

SMALL = {"channels": [4, 2], "kernels": [3, 2], "strides": [2, 1], "widths": [5]}


def trunk_of(shape, **options):
    torch.manual_seed(0)
    return CNNTrunk({"observation": Box(0, 255, shape, np.uint8)}, **(SMALL | options))


def image_of(shape, *lead):
    rng = np.random.default_rng(0)
    return torch.as_tensor(rng.integers(0, 256, (*lead, *shape), dtype=np.uint8))


def by_hand(trunk, image):
    """The features of `image` `[B, C, H, W]` with plain convolutions."""
    x = image.float() / 255
    convolutions = [module for module in trunk.convolutions[0].modules() if isinstance(module, torch.nn.Conv2d)]
    for convolution, stride in zip(convolutions, [2, 1], strict=True):
        x = F.conv2d(x, convolution.weight, convolution.bias, stride).relu()
    return F.linear(x.flatten(1), trunk.body[0].weight, trunk.body[0].bias).relu()


@pytest.mark.parametrize(
    ("shape", "to_first"),
    [
        ((3, 9, 8), lambda x: x),
        ((9, 8, 3), lambda x: x.permute(0, 3, 1, 2)),
        ((9, 8), lambda x: x[:, None]),
        ((4, 9, 9), lambda x: x),
        ((9, 9, 4), lambda x: x.permute(0, 3, 1, 2)),
        ((8, 8, 8), lambda x: x),
    ],
)
def test_a09_channels_first_last_or_absent(shape, to_first):
    trunk, image = trunk_of(shape), image_of(shape, 2)
    torch.testing.assert_close(trunk({"observation": image}), by_hand(trunk, to_first(image)))


def test_a09_network_input_is_between_zero_and_one():
    trunk, seen = trunk_of((9, 8, 3)), []
    trunk.convolutions[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    trunk({"observation": torch.tensor([0, 255], dtype=torch.uint8).repeat(108).reshape(1, 9, 8, 3)})
    (x,) = seen
    assert x.dtype == torch.float32 and x.min() == 0 and x.max() == 1


@pytest.mark.parametrize("shape", [(3, 9, 8), (9, 8, 3), (9, 8)])
def test_leading_dimensions(shape):
    trunk, image = trunk_of(shape), image_of(shape, 2, 3)
    out = trunk({"observation": image})
    assert out.shape == (2, 3, 5)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(trunk({"observation": image[i, j]}), out[i, j])


def test_a09_dict_of_two_images_and_a_vector():
    spaces = {
        ("observation", "vec"): Box(-1, 1, (4,), np.float64),
        ("observation", "far"): Box(0, 255, (3, 8, 8), np.uint8),
        ("observation", "near"): Box(0, 255, (8, 8, 1), np.uint8),
    }
    trunk = CNNTrunk(spaces, **(SMALL | {"activation": "tanh"}))
    # 8 -> 3 (kernel 3, stride 2) -> 2 (kernel 2): 2 channels of 2 x 2 an image.
    assert trunk.body[0].in_features == 8 + 8 + 4
    base = {key: torch.as_tensor(np.full((1, *s.shape), 1, s.dtype)) for key, s in spaces.items()}
    out = trunk(base)
    assert out.dtype == torch.float32 and out.shape == (1, 5)
    for key, leaf in base.items():
        assert not torch.equal(trunk(base | {key: leaf * 0}), out), f"{key} is not read"


def test_the_default_encoder_has_the_sizes_of_the_paper():
    trunk = CNNTrunk({"observation": Box(0, 255, (84, 84, 4), np.uint8)})
    assert trunk.body[0].in_features == 64 * 7 * 7
    assert trunk.acting_trunk_grad == 0.0


def test_a_small_image_is_refused_with_the_options_to_set():
    with pytest.raises(ValueError, match=r"'observation' of shape \(2, 2, 3\) is too small .* trunk.kernels"):
        trunk_of((2, 2, 3))


def test_no_image_is_refused():
    for space in (Box(0, 1, (8, 8)), Box(0, 255, (8,), np.uint8), Box(0, 9, (8, 8), np.uint8)):
        with pytest.raises(ValueError, match=r"needs an image"):
            CNNTrunk({"observation": space}, **SMALL)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"must have one length"):
        trunk_of((9, 8, 3), strides=[1])


def test_layer_norm_and_activation_reach_the_layers():
    trunk = trunk_of((9, 8, 3), layer_norm=True, activation="elu")
    assert [type(layer).__name__ for layer in trunk.body] == ["Linear", "LayerNorm", "ELU"]
    assert any(isinstance(module, torch.nn.ELU) for module in trunk.convolutions[0].modules())
