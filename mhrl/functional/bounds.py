"""The affine map between [-1, 1] and a box, dimension by dimension.

Shapes: `*` any batch shape, `D` dimensions of the box.
"""

import torch
from torch import Tensor


def center_and_half_range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and half-range `[D]` of a box; halves first, so that wide finite bounds do not overflow."""
    return low / 2 + high / 2, high / 2 - low / 2


def to_box(x: Tensor, center: Tensor, half_range: Tensor) -> Tensor:
    """Map `x` `[*, D]` in [-1, 1] to the box; a zero-width dimension is its constant."""
    return center + half_range * x


def from_box(action: Tensor, center: Tensor, half_range: Tensor) -> Tensor:
    """Inverse of `to_box`; a zero-width dimension maps to 0."""
    return (action - center) / torch.where(half_range > 0, half_range, 1.0)
