import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from mhrl.trunks import MLPTrunk


def test_leaves_are_concatenated_in_order_then_layers_follow():
    torch.manual_seed(0)
    spaces = {("observation", "b"): Discrete(2), ("observation", "a"): Box(-1, 1, (2,), np.float64)}
    trunk = MLPTrunk(spaces, [4, 3])
    leaves = {
        ("observation", "a"): torch.tensor([[0.5, -1.0]], dtype=torch.float64),
        ("observation", "b"): torch.tensor([1]),
    }
    x = torch.tensor([[0.0, 1.0, 0.5, -1.0]])
    for layer in (trunk.body[0], trunk.body[2]):
        x = torch.relu(x @ layer.weight.T + layer.bias)
    assert trunk.out_features == 3
    torch.testing.assert_close(trunk(leaves), x)


def test_layer_norm_makes_each_row_of_unit_variance_before_the_activation():
    trunk = MLPTrunk({"observation": Box(-1, 1, (3,))}, [8], layer_norm=True)
    normalised = []
    trunk.body[1].register_forward_hook(lambda module, inputs, output: normalised.append(output.clone()))
    out = trunk({"observation": 100 * torch.randn(5, 3)})  # beside which epsilon is nothing
    torch.testing.assert_close(normalised[0].mean(-1), torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(normalised[0].var(-1, correction=0), torch.ones(5), rtol=0, atol=1e-4)
    torch.testing.assert_close(out, normalised[0].relu())


def test_time_is_one_more_leading_dimension():
    trunk, leaf = MLPTrunk({"observation": Box(-1, 1, (3,))}, [4]), torch.randn(2, 5, 3)
    torch.testing.assert_close(trunk({"observation": leaf})[1, 3], trunk({"observation": leaf[1, 3]}))
