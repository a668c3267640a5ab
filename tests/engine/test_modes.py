import torch
from torch import nn

from mhrl.engine.modes import Modes
from mhrl.layers import mlp


class Noisy(nn.Module):
    """Tells its modes apart, in a way that nobody knows of."""

    def forward(self, x):
        return x + 1 if self.training else x


def test_modules_that_may_tell_the_modes_apart_are_switched():
    for module in (Noisy(), nn.Dropout(0.5), nn.BatchNorm1d(4)):
        network = nn.Sequential(mlp(3, [4], layer_norm=True), module).eval()
        with Modes(network).training():
            assert network.training and module.training
        assert not network.training and not module.training


def test_others_are_left_as_they_are(make_network):
    network = mlp(3, [4], 2, layer_norm=True).eval()
    x = torch.randn(5, 3)
    acting = network(x)
    with Modes(network).training():
        assert not network.training and torch.equal(network(x), acting)
    network = make_network().eval()
    with Modes(network).training():
        assert not network.training
