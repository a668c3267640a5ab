import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhrl.layers import ACTIVATIONS, mlp


def kinds(module):
    return [type(layer) for layer in module]


def test_order_of_layers():
    assert kinds(mlp(3, [4, 5])) == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert kinds(mlp(3, [4], 2)) == [nn.Linear, nn.ReLU, nn.Linear]
    assert kinds(mlp(3, [], 2)) == [nn.Linear]
    assert kinds(mlp(3, [4], layer_norm=True)) == [nn.Linear, nn.LayerNorm, nn.ReLU]
    assert kinds(mlp(3, [4, 5], 2, layer_norm=True)) == [nn.Linear, nn.LayerNorm, nn.ReLU] * 2 + [nn.Linear]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_forward_of_two_layers(layer_norm):
    torch.manual_seed(0)
    module, x = mlp(3, [4], 2, activation="elu", layer_norm=layer_norm), torch.randn(2, 5, 3)
    first, last = module[0], module[-1]
    hidden = x @ first.weight.T + first.bias
    if layer_norm:
        hidden = (hidden - hidden.mean(-1, keepdim=True)) / (hidden.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(module(x), F.elu(hidden) @ last.weight.T + last.bias)


BY_NAME = pytest.mark.parametrize(
    ("name", "right"),
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("elu", F.elu),
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("leaky_relu", F.leaky_relu),
    ],
)


@BY_NAME
def test_every_activation_by_name(name, right):
    module, x = mlp(2, [3], activation=name), torch.randn(4, 2)
    torch.testing.assert_close(module(x), right(module[0](x)))


@BY_NAME
@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_of_every_activation_in_autograd_and_in_func(name, right, layer_norm):
    # An activation that overwrites what another layer's gradient still needs would show here.
    module, x = (
        mlp(2, [3, 4], 1, activation=name, layer_norm=layer_norm).double(),
        torch.randn(5, 2, dtype=torch.float64),
    )

    def plain(x):
        for layer in module:
            x = right(x) if type(layer) is ACTIVATIONS[name] else layer(x)
        return x

    arguments = (x.requires_grad_(), *module.parameters())
    before = x.detach().clone()
    wanted = torch.autograd.grad(plain(x).square().sum(), arguments)
    for found, gradient in zip(torch.autograd.grad(module(x).square().sum(), arguments), wanted, strict=True):
        torch.testing.assert_close(found, gradient)
    with torch.no_grad():
        value, pull = torch.func.vjp(module, x.detach())
        torch.testing.assert_close(pull(2 * value)[0], wanted[0])
    assert torch.equal(x, before)


def test_every_activation_is_listed_above():
    assert set(ACTIVATIONS) == {"relu", "tanh", "elu", "silu", "gelu", "leaky_relu"}


@pytest.mark.parametrize(("widths", "out"), [([], None), ([4, 0], 2), ([-1], None)])
def test_widths_that_make_no_network_are_refused(widths, out):
    with pytest.raises(ValueError, match=r"must be positive"):
        mlp(3, widths, out)


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"unknown activation 'swish': choose one of relu, tanh"):
        mlp(3, [4], activation="swish")
