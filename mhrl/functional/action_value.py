"""Values of choices: the one that was taken, the best one, and what several branches make together.

Shapes: `*` any batch shape, `K` branches, `n` most values of a branch.
"""

from typing import Literal

import torch
from torch import Tensor

BranchReduction = Literal["independent", "max", "mean", "sum"]


def chosen_value(values: Tensor, index: Tensor) -> Tensor:
    """The values `[*, K]` of the choices `index` `[*, K]` among `values` `[*, K, n]`.

    Raises:
        ValueError: if the shapes do not go together (broadcasting would silently pair every branch with every other).
    """
    if values.shape[:-1] != index.shape:
        raise ValueError(f"values {tuple(values.shape)} and index {tuple(index.shape)} do not go together")
    if values.shape[-1] == 1:  # a lone value: nothing to gather
        return values.squeeze(-1)
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def allowed(values: Tensor, mask: Tensor | None) -> Tensor:
    """`values` `[*, K, n]`, -inf where bool `mask` `[*, K, n]` is False."""
    return values if mask is None else values.masked_fill(~mask, -torch.inf)


def best_value(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest of `values` `[*, K, n]` that `mask` allows, `[*, K]`; -inf where it allows none."""
    return values.squeeze(-1) if values.shape[-1] == 1 and mask is None else allowed(values, mask).amax(-1)


def best_index(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The index of the largest of `values` `[*, K, n]` that `mask` allows, int64 `[*, K]`."""
    return allowed(values, mask).argmax(-1)


def joint_best_value(values: Tensor, mask: Tensor | None, reduction: BranchReduction) -> Tensor:
    """The value `[*]` of the best choice of every branch together; their mean, if branches are `independent`.

    Args:
        values: `[*, K, n]`.
        mask: bool `[*, K, n]`, or None.
        reduction: see `reduce_branches`.
    """
    if mask is None and values.shape[-2:] == (1, 1):  # a lone value: nothing to choose, nothing to reduce
        return values.reshape(values.shape[:-2])
    best = best_value(values, mask)
    return reduce_branches(best, "mean" if reduction == "independent" else reduction).squeeze(-1)


def reduce_branches(values: Tensor, reduction: BranchReduction) -> Tensor:
    """Values of the branches `[*, K]` as one: `[*, 1]`, or as they are with `independent`.

    `mean` is the target of branching Q-networks (Tavakoli et al., 2018, eq. 6) and the joint value of DecQN (Seyde et
    al., 2023, eq. 3), `max` theirs of eq. 5, `sum` the joint value of value decomposition (Sunehag et al., 2018, eq.
    1).

    Raises:
        ValueError: if `reduction` is unknown.
    """
    if values.shape[-1] == 1:
        return values
    match reduction:
        case "independent":
            return values
        case "max":
            return values.amax(-1, keepdim=True)
        case "mean":
            return values.mean(-1, keepdim=True)
        case "sum":
            return values.sum(-1, keepdim=True)
    raise ValueError(f"unknown reduction {reduction!r}: choose independent, max, mean or sum")
