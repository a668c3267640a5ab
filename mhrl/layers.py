"""Multi-layer perceptrons in the vocabulary of the configs, shared by trunks and heads."""

from collections.abc import Sequence
from typing import Literal

from torch import nn
from torchrl.modules import MLP

Activation = Literal["relu", "tanh", "elu", "silu", "gelu", "leaky_relu"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}


IN_PLACE = ("relu", "elu", "leaky_relu")
"""Activations whose gradient needs their output only: they may overwrite the linear layer's, which saves memory."""


def activation_class(activation: Activation) -> type[nn.Module]:
    """The module class of a config's `activation`.

    Raises:
        ValueError: if the name is unknown.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"unknown activation {activation!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def mlp(
    in_features: int,
    widths: Sequence[int],
    out_features: int | None = None,
    *,
    activation: Activation = "relu",
    layer_norm: bool = False,
    final_init: float | None = None,
) -> nn.Module:
    """Build hidden layers of `widths` and, unless `out_features` is None, a linear layer after them.

    Args:
        in_features: size of the input's last dimension.
        widths: sizes of the hidden layers, each linear > (layer norm) > activation.
        out_features: size of a last linear layer without activation.
        activation: one of `ACTIVATIONS`.
        layer_norm: normalise each hidden layer before its activation.
        final_init: the last layer's weights and biases are drawn uniformly from +- this; None leaves torch's default.

    Raises:
        ValueError: if a width or `final_init` is not positive, the activation is unknown, or there is no layer at all.
    """
    if final_init is not None and not final_init > 0:
        raise ValueError(f"final_init is {final_init}: a positive number or null is expected")
    widths = list(widths)
    if any(width < 1 for width in widths) or (not widths and out_features is None):
        raise ValueError(f"widths {widths} must be positive and, without an output layer, not empty")
    activate_last_layer = out_features is None
    sizes = widths[:-1] if activate_last_layer else widths
    network = MLP(
        in_features=in_features,
        out_features=widths[-1] if out_features is None else out_features,
        num_cells=sizes,
        activation_class=activation_class(activation),
        activation_kwargs={"inplace": True} if activation in IN_PLACE else None,
        norm_class=nn.LayerNorm if layer_norm else None,
        norm_kwargs=[{"normalized_shape": width} for width in widths] if layer_norm else None,
        activate_last_layer=activate_last_layer,
    )
    if final_init is not None:
        *_, last = network.children()
        for parameter in last.parameters():
            nn.init.uniform_(parameter, -final_init, final_init)
    return network
