import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from mhrl.trunks import IdentityTrunk


def features(space, leaf):
    return IdentityTrunk({"observation": space})({"observation": leaf})


def test_a09_pixels_become_zero_to_one():
    space = Box(0, 255, (2, 2), np.uint8)
    out = features(space, torch.tensor([[[0, 255], [51, 102]]], dtype=torch.uint8))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.tensor([[0.0, 1.0, 0.2, 0.4]]))


def test_a09_a_uint8_box_that_is_no_image_keeps_its_numbers():
    assert features(Box(0, 9, (2,), np.uint8), torch.tensor([[3, 9]], dtype=torch.uint8)).tolist() == [[3.0, 9.0]]


def test_a09_float64_and_integers_become_float32():
    for dtype in (np.float64, np.int64):
        out = features(Box(-9, 9, (2,), dtype), torch.tensor([[-7, 2]]).to(torch.from_numpy(np.empty(0, dtype)).dtype))
        assert out.dtype == torch.float32 and out.tolist() == [[-7.0, 2.0]]


@pytest.mark.parametrize("start", [0, -2, 7])
def test_a09_discrete_becomes_one_hot_of_its_width(start):
    out = features(Discrete(5, start=start), torch.tensor([start, start + 4]))
    assert out.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert out.dtype == torch.float32


def test_a09_dict_of_image_and_vector():
    spaces = {
        ("observation", "img"): Box(0, 255, (3, 8, 8), np.uint8),
        ("observation", "vec"): Box(-5, 5, (4,), np.float64),
    }
    trunk = IdentityTrunk(spaces)
    assert trunk.out_features == 3 * 8 * 8 + 4
    image = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    image[1, 2, 7, 7] = 255
    vector = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.float64)
    out = trunk({("observation", "img"): image, ("observation", "vec"): vector})
    assert out[:, 192:].tolist() == vector.tolist()
    assert out[0, :192].sum() == 0 and out[1, 191] == 1 and out[1, :191].sum() == 0


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 1, 2)])
def test_leading_dimensions_and_leaf_shapes(lead, shape):
    leaf = torch.randn((*lead, *shape))
    out = features(Box(-9, 9, shape), leaf)
    assert out.shape == (*lead, int(np.prod(shape)))
    assert out.flatten().tolist() == leaf.flatten().tolist()


def test_it_has_no_parameters_and_follows_to():
    trunk = IdentityTrunk({"observation": Box(-1, 1, (2,))})
    assert not list(trunk.parameters()) and not trunk.state_dict()
    assert trunk.double()({"observation": torch.ones(1, 2)}).dtype == torch.float64
