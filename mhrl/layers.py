"""Multi-layer perceptrons in the vocabulary of the configs, shared by trunks and heads, alone or many at once.

Shapes: `*` batch, `N` rows of a flattened batch, `K` perceptrons, `I` inputs, `H` units of a layer, `O` outputs.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


@final
class OutputLayer(nn.Linear):
    """A linear layer whose product has the precision of its parameters, under autocast, too.

    bfloat16 has no number between -150 and -151.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`[*, I]` to `[*, O]`."""
        with in_full(input):
            return F.linear(input.to(self.weight.dtype), self.weight, self.bias)


def in_full(x: Tensor) -> AbstractContextManager[Any]:
    """Within, products on the device of `x` have the precision of their parameters."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def mlp(
    in_features: int,
    widths: Sequence[int],
    out_features: int | None = None,
    *,
    activation: Activation = "relu",
    layer_norm: bool = False,
    final_init: float | None = None,
) -> nn.Sequential:
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
    sizes, layers = [in_features, *widths], list[nn.Module]()
    kind, options = activation_class(activation), {"inplace": True} if activation in IN_PLACE else {}
    for inputs, width in pairwise(sizes):
        layers.append(nn.Linear(inputs, width))
        if layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(kind(**options))
    if out_features is not None:
        last = OutputLayer(sizes[-1], out_features)
        if final_init is not None:
            for parameter in last.parameters():
                nn.init.uniform_(parameter, -final_init, final_init)
        layers.append(last)
    return nn.Sequential(*layers)


def stack_key(body: nn.Sequential) -> Hashable:
    """What perceptrons of `mlp` must have in common to be stacked: everything but the number of outputs."""
    *hidden, last = body
    return (*map(repr, hidden), last.in_features)


def stacked(bodies: Sequence[nn.Sequential], inputs: Tensor, *, apart: bool = False) -> Tensor:
    """Run perceptrons of one `stack_key` together; their parameters stay their own.

    With one input for all, the first layers are one product, also where it comes as an alias for each (an expanded
    tensor, of which each alias gets a gradient of its own); all other layers are batched products. A single
    perceptron gives the bits of its own forward pass. Each that trains gets a gradient, zeros where its outputs are
    not used: leave out those that should get none.

    Args:
        bodies: `K` perceptrons of `mlp`, each with an output layer.
        inputs: `[*, I]` for all; or `[K, *, I]`, one for each, if `apart`.
        apart: whether each has its own input.

    Returns:
        `[*, K, O]`, where `O` is the largest number of outputs. Perceptrons of fewer end in zeros, which pass no
        gradient: they are sums over constant zero weights.
    """
    if len(bodies) == 1:
        return bodies[0](inputs[0] if apart else inputs).unsqueeze(-2)
    first, *rest = zip(*bodies, strict=True)
    batch = inputs.shape[1:-1] if apart else inputs.shape[:-1]
    if not apart:
        x = _run(_shared_products, first, inputs.reshape(-1, inputs.shape[-1]))
    else:
        products = _alias_products if inputs.stride(0) == 0 else _products
        x = _run(products, first, inputs.reshape(len(bodies), -1, inputs.shape[-1]))
    for layers in rest:
        match layers[0]:
            case nn.Linear():
                x = _run(_products, layers, _by_body(x, len(bodies)))
            case nn.LayerNorm():
                x = _norms(layers, _by_body(x, len(bodies)))
            case activation:
                x = activation(x)  # before `_by_body`: in place on a view, autograd would copy gradients
    outputs = _by_body(x, len(bodies)).transpose(0, 1)
    return outputs.reshape(*batch, *outputs.shape[1:])


def side_by_side(outputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """What `stacked` returned, `[*, K, O]`, without its zeros: `[*, sum of sizes]`, by the `K` numbers of outputs."""
    if len(set(sizes)) == 1:
        return outputs.flatten(-2)
    return torch.cat([own[..., :size] for own, size in zip(outputs.unbind(-2), sizes, strict=True)], -1)


def _by_body(x: Tensor, count: int) -> Tensor:
    """Units side by side, `[N, K * H]`, as `[K, N, H]`."""
    return x if x.dim() == 3 else x.unflatten(-1, (count, -1)).transpose(0, 1)


def _run(products: Callable[[Sequence[nn.Linear], Tensor], Tensor], layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    """`products(layers, x)`, of output layers in the precision of their parameters."""
    if not isinstance(layers[0], OutputLayer):
        return products(layers, x)
    with in_full(x):
        return products(layers, x.to(layers[0].weight.dtype))


def _shared_products(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    """`[N, H]` to `[N, K * O]`, by all layers."""
    weight, bias = _concatenated(layers)
    return F.linear(x, weight, bias)


def _products(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    """`[K, N, H]` to `[K, N, O]`, each by its own layer."""
    weight, bias = (part.unflatten(0, (len(layers), -1)) for part in _concatenated(layers))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _alias_products(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    """`[K, N, H]`, aliases of one tensor, to `[N, K * O]`."""
    return _AliasProducts.apply(x, *_concatenated(layers))


class _AliasProducts(torch.autograd.Function):
    """`_products` of inputs that are aliases of one: one product for all layers, but a gradient for each alias.

    By batched products the step of 17 heads of 33 outputs takes 1.15 times as long.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """`[K, N, H]` to `[N, K * O]`."""
        return F.linear(x[0], weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401
        """Keep what `backward` needs."""
        x, weight, _ = inputs
        ctx.count = len(x)
        ctx.save_for_backward(x[0], weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """The gradients of the aliases `[K, N, H]`, of weights and biases."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        x, weight = x.to(gradient.dtype), weight.to(gradient.dtype)  # autocast is over
        apart = torch.bmm(_by_body(gradient, ctx.count), weight.unflatten(0, (ctx.count, -1)))
        return apart, gradient.T @ x, gradient.sum(0)


def _norms(layers: Sequence[nn.LayerNorm], x: Tensor) -> Tensor:
    """Normalise `[K, N, H]` over `H`, each by its own layer."""
    weight, bias = (
        torch.stack(parts).unsqueeze(1) for parts in zip(*((n.weight, n.bias) for n in layers), strict=True)
    )
    return torch.addcmul(bias, weight, F.layer_norm(x, layers[0].normalized_shape, eps=layers[0].eps))


def _concatenated(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """Weights `[K * O, H]` and biases `[K * O]` of layers with `O` outputs at most; zeros where one has fewer."""
    size = max(layer.out_features for layer in layers)
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for layer in layers:
        weights.append(layer.weight)
        biases.append(layer.bias)
        if layer.out_features < size:
            weights.append(layer.weight.new_zeros(size - layer.out_features, layer.in_features))
            biases.append(layer.bias.new_zeros(size - layer.out_features))
    return torch.cat(weights), torch.cat(biases)
