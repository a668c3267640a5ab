"""The floor: the matrix products of an update and nothing else, each one call into memory that is there already.

Forward pass `y = x W'`; backward pass `dW = g' x`, and `dx = g W` where something before asks for it. Biases and their
gradients are sums, activations are no products. Shapes: `B` batch, `I` inputs, `O` outputs of a layer.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

Product = tuple[Tensor, Tensor, Tensor]
"""Two factors, and where their product goes."""


def multiply(products: Sequence[Product]) -> None:
    """All products once."""
    for left, right, out in products:
        torch.mm(left, right, out=out)


def flops(products: Sequence[Product]) -> int:
    """Floating-point operations of all products; a multiplication and an addition are two."""
    return sum(2 * left.shape[0] * left.shape[1] * right.shape[1] for left, right, _ in products)


def weights_of(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Weights `[O, I]` of a perceptron of layer sizes `sizes`, its inputs first."""
    return [torch.randn(after, before).div(before**0.5).to(dtype) for before, after in pairwise(sizes)]


class Pass:
    """One pass through a perceptron, with values and gradients of its own; `weights` may be another pass's, too."""

    def __init__(self, weights: Sequence[Tensor], batch: int) -> None:
        sizes, dtype = [weights[0].shape[1], *(weight.shape[0] for weight in weights)], weights[0].dtype
        self.weights = weights
        self.values, self.gradients = ([torch.randn(batch, size).to(dtype) for size in sizes] for _ in range(2))

    def forward(self) -> list[Product]:
        """From the inputs to the outputs."""
        return [(x, weight.T, y) for weight, (x, y) in zip(self.weights, pairwise(self.values), strict=True)]

    def backward_weights(self) -> list[Product]:
        """The gradients of the weights."""
        layers = zip(self.weights, self.gradients[1:], self.values[:-1], strict=True)
        return [(gradient.T, x, torch.empty_like(weight)) for weight, gradient, x in layers][::-1]

    def backward_inputs(self, first: int = 0) -> list[Product]:
        """The gradients of the layers' inputs; of the perceptron's own for the last `first` of them only."""
        layers = list(zip(self.weights, pairwise(self.gradients), strict=True))
        products = [(after, weight, before) for weight, (before, after) in layers[1:]][::-1]
        if first:
            weight, (before, after) = layers[0]
            products.append((after, weight[:, -first:], torch.empty_like(before[:, -first:])))
        return products


def ddpg_products(
    observation: int, action: int, widths: Sequence[int], batch: int, dtype: torch.dtype = torch.float32
) -> list[Product]:
    """Those of one DDPG update: target actor and critic, critic, its action gradient at the actor's action, actor."""
    sizes = [observation, *widths, action], [observation + action, *widths, 1]
    target_actor, target_critic = (Pass(weights_of(one, dtype), batch) for one in sizes)
    actor, critic = (Pass(weights_of(one, dtype), batch) for one in sizes)
    judge = Pass(critic.weights, batch)  # the critic at the actor's action
    return [
        *target_actor.forward(),
        *target_critic.forward(),
        *actor.forward(),
        *judge.forward(),
        *critic.forward(),
        *judge.backward_inputs(first=action),
        *critic.backward_inputs(),
        *critic.backward_weights(),
        *actor.backward_inputs(),
        *actor.backward_weights(),
    ]


def stack_products(below: Sequence[int], heads: int, sizes: Sequence[int], batch: int) -> list[Product]:
    """Those of one update of a trunk and heads upon it, the heads' first layers in joint products.

    Args:
        below: layer sizes of the trunk, its inputs first.
        heads: how many.
        sizes: layer sizes of a head after its first layer's inputs, which are the trunk's outputs.
        batch: `B`.
    """
    trunk, joint = Pass(weights_of(below), batch), Pass(weights_of([below[-1], heads * sizes[0]]), batch)
    above = [Pass(weights_of(sizes), batch) for _ in range(heads)] if len(sizes) > 1 else []
    return [
        *trunk.forward(),
        *joint.forward(),
        *(product for head in above for product in head.forward()),
        *(product for head in above for product in (*head.backward_inputs(first=sizes[0]), *head.backward_weights())),
        *joint.backward_inputs(first=below[-1]),
        *joint.backward_weights(),
        *trunk.backward_inputs(),
        *trunk.backward_weights(),
    ]
