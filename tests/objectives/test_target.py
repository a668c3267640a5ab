import copy

import pytest
import torch
from torch import nn

from mhrl.objectives.target import SoftUpdate, make_target


def fill(module, value):
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(value)
    return module


@pytest.mark.parametrize(("updates", "right"), [(1, 0.005), (2, 0.009975), (1000, 1 - 0.995**1000)])
def test_a07_the_target_moves_towards_the_online_network_by_tau(updates, right):
    online = fill(nn.Linear(1, 1).double(), 1.0)
    target = fill(make_target(online), 0.0)
    for _ in range(updates):
        SoftUpdate(target, online)(0.005)
    assert target.weight.item() == pytest.approx(right, abs=1e-9)
    assert target.bias.item() == pytest.approx(right, abs=1e-9)
    assert online.weight.item() == 1.0


def test_a07_tau_one_copies_exactly_and_tau_zero_moves_nothing():
    torch.manual_seed(0)
    online = nn.Linear(50, 50)
    target = fill(make_target(online), 1e8)
    before = target.weight.clone()
    SoftUpdate(target, online)(0.0)
    assert torch.equal(target.weight, before)
    SoftUpdate(target, online)(1.0)
    assert torch.equal(target.weight, online.weight) and torch.equal(target.bias, online.bias)


def test_a07_own_storage_and_equal_values_at_the_start(make_network):
    network = make_network()
    target = make_target(network)
    assert not list(target.parameters())
    online, own = network.state_dict(), target.state_dict()
    assert online.keys() == own.keys() and len(own) > 0
    for key in own:
        assert torch.equal(online[key], own[key]) and online[key].data_ptr() != own[key].data_ptr()
        assert not own[key].requires_grad


def test_a07_the_online_network_is_left_as_it_was(make_network):
    network = make_network()
    names = [name for name, _ in network.named_parameters()]
    make_target(network)
    assert [name for name, p in network.named_parameters() if p.requires_grad] == names and names


def test_a07_float_buffers_follow_and_integer_buffers_are_copied():
    online = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    target = make_target(online)
    online(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))  # moves running_mean, running_var and num_batches_tracked
    with torch.no_grad():
        online[1].running_mean.copy_(torch.tensor([10.0, -10.0]))
    variance = online[1].running_var.clone()
    SoftUpdate(target, online)(0.25)
    torch.testing.assert_close(target[1].running_mean, torch.tensor([2.5, -2.5]))
    torch.testing.assert_close(target[1].running_var, 1 + 0.25 * (variance - 1))
    assert target[1].num_batches_tracked.item() == 1
    assert target[1].num_batches_tracked.data_ptr() != online[1].num_batches_tracked.data_ptr()


def test_a07_a_tied_parameter_stays_tied_and_moves_once():
    online = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    online[1].weight = online[0].weight
    fill(online, 1.0)
    target = fill(make_target(online), 0.0)
    assert target[0].weight is target[1].weight
    SoftUpdate(target, online)(0.1)
    torch.testing.assert_close(target[1].weight, torch.full((2, 2), 0.1))


@pytest.mark.parametrize("make", [lambda: nn.GRU(2, 3), lambda: nn.ParameterList([torch.ones(2)])])
def test_a07_layers_that_keep_lists_of_their_parameters(make):
    torch.manual_seed(0)
    online = make()
    target = make_target(online)
    fill(online, 1.0)
    SoftUpdate(target, online)(1.0)
    assert all((tensor == 1.0).all() for tensor in target.state_dict().values()) and target.state_dict()
    if isinstance(online, nn.GRU):
        x = torch.randn(4, 1, 2)
        assert torch.equal(target(x)[0], online(x)[0])


class Running(nn.Module):
    """A user's module that assigns its statistics instead of writing into them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("index", torch.arange(2))
        self.register_buffer("mean", torch.zeros(2))
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return self.layer(x)


def test_a07_a_buffer_that_is_assigned_is_followed_too():
    online = Running()
    target = make_target(online)
    update = SoftUpdate(target, online)
    update(0.5)
    online(torch.full((3, 2), 8.0))  # the mean is 4 now, in another tensor
    update(0.5)
    assert target.mean.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("tied", [False, True])
def test_a07_networks_that_are_moved_or_cast_are_followed_too(tied):
    online = nn.Sequential(Running(), nn.Linear(2, 2))
    if tied:
        online[1].weight = online[0].layer.weight
    target = make_target(online)
    update = SoftUpdate(target, online)
    update(0.5)
    online.double(), target.double()
    fill(online, 1.0), fill(target, 0.0)
    update(0.25)
    for tensor in (target[0].layer.weight, target[1].weight, target[0].mean):
        assert (tensor == 0.25).all()


def test_a07_a_copy_of_both_is_a_pair_of_its_own():
    online = fill(nn.Linear(2, 2), 1.0)
    target = fill(make_target(online), 0.0)
    online_copy, target_copy, update = copy.deepcopy((online, target, SoftUpdate(target, online)))
    fill(online_copy, 3.0)
    update(0.5)
    assert (target_copy.weight == 1.5).all() and (target.weight == 0.0).all()


def test_target_state_dict_loads_into_the_online_network(make_network):
    network, other = make_network(seed=0), make_network(seed=1)
    network.load_state_dict(make_target(other).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))


def test_a07_a_target_that_changed_its_dtype_still_moves():
    online = fill(nn.Linear(2, 2), 1.0)
    target = fill(make_target(online), 0.0)
    step = SoftUpdate(target, online)
    step(0.5)
    for module in (online, target):
        module.double()
    step(0.5)
    assert target.weight.dtype == torch.float64
    torch.testing.assert_close(target.weight, torch.full((2, 2), 0.75, dtype=torch.float64))


def test_constants_stay_as_they_are():
    network = nn.Linear(2, 2)
    network.register_buffer("bound", torch.tensor([1.0, 2.0]), persistent=False)
    target = make_target(network)
    update = SoftUpdate(target, network)
    with torch.no_grad():
        network.weight.add_(1.0)
    network.bound.add_(1.0)
    update(1.0)
    assert target.bound.tolist() == [1.0, 2.0] and torch.equal(target.weight, network.weight)
