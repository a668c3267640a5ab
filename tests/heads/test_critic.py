import numpy as np
import torch
from gymnasium.spaces import Box

from mhrl.heads import QHead

BOX = Box(np.array([-1.0, 0.0]), np.array([3.0, 0.5]), dtype=np.float64)


def test_a03_it_reads_the_action_in_half_ranges():
    torch.manual_seed(0)
    head, features, seen = QHead(3, BOX, [4]), torch.randn(3, 3), []
    head.body.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    value = head(features, torch.tensor([[-1.0, 0.0], [1.0, 0.25], [3.0, 0.5]], dtype=torch.float64))
    assert value.shape == (3,) and value.dtype == torch.float32
    assert torch.equal(seen[0][:, :3], features)
    torch.testing.assert_close(seen[0][:, 3:], torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]))


def test_gradient_is_per_env_unit():
    torch.manual_seed(0)
    head = QHead(3, BOX, [4], activation="tanh").double()
    features = torch.randn(3, dtype=torch.float64)
    action = torch.tensor([0.5, 0.1], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(head(features, action), action)
    for dim in range(2):
        step = torch.zeros(2, dtype=torch.float64).index_fill_(0, torch.tensor(dim), 1e-6)
        with torch.no_grad():
            slope = (head(features, action + step) - head(features, action - step)) / 2e-6
        torch.testing.assert_close(gradient[dim], slope, rtol=1e-6, atol=1e-8)


def test_a03_zero_width_dimension_of_the_action_is_harmless():
    torch.manual_seed(0)
    head = QHead(3, Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32)), [4])
    action = torch.tensor([[0.3, 2.0]], requires_grad=True)
    value = head(torch.randn(1, 3), action)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(action.grad).all()


def test_time_is_one_more_leading_dimension():
    head, features, action = QHead(3, BOX, [4]), torch.randn(2, 5, 3), torch.rand(2, 5, 2)
    value = head(features, action)
    assert value.shape == (2, 5)
    torch.testing.assert_close(value[1, 3], head(features[1, 3], action[1, 3]))
