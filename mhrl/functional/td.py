"""Temporal-difference targets.

Shapes: `*` any batch shape, the same for every argument.
"""

import torch
from torch import Tensor


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float | Tensor) -> Tensor:
    """Target `r + gamma * (1 - terminated) * next_value` (Sutton & Barto, 2018, eq. 6.2).

    Only `terminated` stops the bootstrap; a truncated episode still has a future. The value of a terminal
    state is never read, so that whatever a network says there (NaN included) cannot reach the target.

    Args:
        reward: `[*]`.
        terminated: `[*]`, bool.
        next_value: `[*]`, the value of the next observation.
        gamma: the discount; `[*]`, its power by row, for returns of several steps.

    Returns:
        `[*]`.

    Raises:
        ValueError: if the shapes differ (broadcasting would silently average over pairs).
    """
    if not reward.shape == terminated.shape == next_value.shape:
        raise ValueError(
            f"reward {tuple(reward.shape)}, terminated {tuple(terminated.shape)} and next_value "
            f"{tuple(next_value.shape)} must have one shape"
        )
    if isinstance(gamma, Tensor) and gamma.shape != reward.shape:
        raise ValueError(f"gamma {tuple(gamma.shape)} and reward {tuple(reward.shape)} must have one shape")
    return torch.where(terminated, reward, reward + gamma * next_value)
