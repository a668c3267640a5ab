"""Gram matrices of the rows: at the trunk's parameters, and without rows of zeros.

Shapes: `K` rows, `N` numbers in all outputs of the trunk together.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mhrl.functional import inner_products


def parameter_gram(
    rows: Tensor,
    outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Inner products `[K, K]` of the gradients that each row alone would give to `parameters`.

    The rows are pulled back through the trunk's graph one by one; the graph is kept for the backward that is going on.
    In one batch (`is_grads_batched`) 17 rows take a third longer on a CPU, and not every operation can be batched.

    Args:
        rows: `[K, N]`, gradients w.r.t. `outputs`.
        outputs: the trunk's outputs, with their graph.
        parameters: the shared ones; those that `outputs` do not depend on count as zero.
        reduce: applied to the gradients `[K, *]` of each parameter first.

    Raises:
        ValueError: if `outputs` depend on none of the parameters.
    """
    parts = rows.split([output.numel() for output in outputs], 1)
    cotangents = [part.unflatten(1, output.shape) for part, output in zip(parts, outputs, strict=True)]
    used = [(output, part) for output, part in zip(outputs, cotangents, strict=True) if output.requires_grad]
    sources, seeds = map(list, zip(*used, strict=True))
    pulled = [
        torch.autograd.grad(sources, parameters, [seed[i] for seed in seeds], retain_graph=True, allow_unused=True)
        for i in range(len(rows))
    ]
    if all(gradient is None for gradient in pulled[0]):
        raise ValueError("shared: none of these parameters lies under the features; shared=trunk.parameters()")
    gram = rows.new_zeros(len(rows), len(rows))
    for of_rows in zip(*pulled, strict=True):
        if of_rows[0] is not None:
            gradient = torch.stack(of_rows)
            flat = (gradient if reduce is None else reduce(gradient)).flatten(1)
            gram = gram + inner_products(flat)
    return gram


def without_zeros(rule: Callable[[Tensor], Tensor], gram: Tensor) -> Tensor:
    """The weights `[K]` by a rule that cannot cope with rows of zeros, whose weight becomes 0; of a single row 1."""
    live = gram.diagonal().nonzero().flatten()
    found = rule(gram[live[:, None], live]) if len(live) > 1 else gram.new_ones(len(live))
    return gram.new_zeros(len(gram)).index_copy(0, live, found.to(gram))
