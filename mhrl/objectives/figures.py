"""What the heads' outputs over a batch say about the heads, as numbers for the log.

Shapes: `*` batch, `A` continuous dimensions of the action, `D` dimensions of a head, `K` branches, `n` most values of
one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhrl.functional import best_index, center_and_half_range
from mhrl.network import ActorCritic

NEAR_BOUND = 0.01
"""The part of a half-range within which an action lies at a bound: there tanh has lost 98 % of its slope."""


def bin_usage(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The fraction of each branch's values that are the best choice of at least one row, `[K]`.

    Args:
        values: `[*, K, n]`, -inf where a branch has fewer than `n`; the batch has at least one dimension.
        mask: which choices are allowed, bool `[*, K, n]`; all, if None.
    """
    best = best_index(values, mask).flatten(0, -2)
    padding = values.flatten(0, -3)[0].isneginf()
    used = torch.zeros_like(padding, dtype=values.dtype).scatter(-1, best.T, 1.0)
    return used.sum(-1) / (~padding).sum(-1)


def saturation(network: ActorCritic, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The fraction of the components of each head's actions that lie at a bound; dimensions of width 0 do not count.

    Args:
        network: has the bounds.
        actions: of all proposing heads, `{head: [*, D]}`, in env units.
    """
    _, half_range = center_and_half_range(network.low, network.high)
    action, margin = network.assemble(actions), NEAR_BOUND * half_range
    near = ((action <= network.low + margin) | (action >= network.high - margin)).to(action.dtype)
    near = near.reshape(-1, len(margin)).mean(0)
    # Whose each of the `A` dimensions is follows from how the heads' actions are put together.
    numbers = {head: torch.full_like(each, i) for i, (head, each) in enumerate(actions.items())}
    owner = network.assemble(numbers).reshape(-1, len(margin))[0]
    own = {head: ((owner == i) & (half_range > 0)).to(near.dtype) for i, head in enumerate(actions)}
    return {head: near @ mine / mine.sum().clamp(min=1) for head, mine in own.items()}
