"""FanOut: one alias of the features per row, one cotangent back to the trunk.

Shapes: `*` batch, `F` features, `K` rows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Combine = Callable[[Tensor], Tensor]


class FanOut(torch.autograd.Function):
    """Hand out `K` aliases of the features and combine their gradients in one place.

    Autograd calls `backward` once, after every row's gradient is complete. There all rows are seen together:
    each is scaled by its `trunk_grad`, the rule combines them into the one cotangent that the trunk receives,
    and their Gram matrix leaves as the gradient of `probe` (an attribute written in backward would break
    compilation). Written with `setup_context`, so that `torch.func` transforms take it.
    """

    @staticmethod
    def forward(
        features: Tensor, probe: Tensor | None, trunk_grad: Tensor, combine: Combine, count: int
    ) -> tuple[Tensor, ...]:
        """Return `count` aliases `[*, F]` of `features`."""
        return tuple(features.view_as(features) for _ in range(count))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
        """Keep what `backward` needs."""
        _, probe, trunk_grad, ctx.combine, _ = inputs
        ctx.with_probe = probe is not None
        ctx.save_for_backward(trunk_grad)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Combine the rows' gradients `K x [*, F]` into one `[*, F]`; the probe's gradient is the Gram `[K, K]`."""
        (trunk_grad,) = ctx.saved_tensors
        rows = torch.stack(gradients)
        rows = rows * trunk_grad.view(-1, *[1] * (rows.dim() - 1))
        flat = rows.flatten(1)
        gram = flat @ flat.T if ctx.with_probe else None
        return ctx.combine(rows), gram, None, None, None
