import pytest
import torch
from torch import nn

from mhrl.engine.module_figures import ModuleFigures, norms


class Net(nn.Module):
    """Parameters [3, 4] and [12] in `trunk`, [6, 8] in `head_a`, [0, 0] in `head_b`; `encoder` has none."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Flatten()
        self.trunk = nn.ParameterList([torch.tensor([3.0, 4.0]), torch.tensor([12.0])])
        self.head_a = nn.ParameterList([torch.tensor([6.0, 8.0])])
        self.head_b = nn.ParameterList([torch.tensor([0.0, 0.0])])


def test_figures_by_hand():
    net = Net()
    net.trunk[0].grad, net.trunk[1].grad = torch.tensor([1.0, 2.0]), torch.tensor([2.0])  # norm 3
    net.head_a[0].grad = torch.tensor([0.0, -2.0])
    after = ModuleFigures(net).before()
    with torch.no_grad():  # as a clipped step would
        net.trunk[0].grad.mul_(100.0)
        net.trunk[0].sub_(torch.tensor([0.0, 5.0]))
        net.trunk[1].sub_(torch.tensor([12.0]))  # together a change of 13, from a norm of 13
        net.head_a[0].add_(torch.tensor([0.3, 0.4]))  # 0.5, from 10
    assert {name: value.item() for name, value in after().items()} == pytest.approx(
        {
            "module/trunk/grad_norm": 3.0,
            "module/trunk/param_norm": 13.0,
            "module/trunk/update_ratio": 1.0,
            "module/head_a/grad_norm": 2.0,
            "module/head_a/param_norm": 10.0,
            "module/head_a/update_ratio": 0.05,
        }
    )


def test_a_module_counts_with_all_its_parameters_and_the_gradients_that_there_are():
    net = Net()
    net.trunk[1].grad = torch.tensor([-7.0])
    after = ModuleFigures(net).before()
    with torch.no_grad():
        net.trunk[1].sub_(1.3)
    assert {name: value.item() for name, value in after().items()} == pytest.approx(
        {"module/trunk/grad_norm": 7.0, "module/trunk/param_norm": 13.0, "module/trunk/update_ratio": 0.1}
    )


def test_the_ratio_of_parameters_that_are_zero_is_zero():
    net = Net()
    net.head_b[0].grad = torch.tensor([0.0, 1.0])
    after = ModuleFigures(net).before()
    with torch.no_grad():
        net.head_b[0].add_(1.0)
    figures = after()
    assert figures["module/head_b/update_ratio"] == 0 and figures["module/head_b/param_norm"] == 0
    assert figures["module/head_b/grad_norm"] == 1


def test_without_gradients_there_are_no_figures():
    assert ModuleFigures(Net()).before()() == {}
    assert ModuleFigures(nn.Flatten()).before()() == {}


def test_norms_are_of_each_list_as_a_whole():
    lists = {"a": [torch.full((2, 2), 1.0), torch.tensor([2.0, 1.0])], "b": [torch.tensor(-5.0)]}
    assert norms(lists).tolist() == [3.0, 5.0]
