"""Per-sample distances and the one place where losses are reduced.

Shapes: `*` any batch shape.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Distance = Literal["l1", "l2", "huber", "smooth_l1"]
"""`huber` and `smooth_l1` are the same with their usual thresholds of 1."""

Reduction = Literal["none", "mean", "sum"]

_DISTANCES: dict[str, Callable[..., Tensor]] = {
    "l1": F.l1_loss,
    "l2": F.mse_loss,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
}


def distance(prediction: Tensor, target: Tensor, kind: Distance = "l2") -> Tensor:
    """Element-wise distance `[*]` of `prediction` and `target`.

    Raises:
        ValueError: if the shapes differ or `kind` is unknown.
    """
    if prediction.shape != target.shape:
        raise ValueError(f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} must have one shape")
    if kind not in _DISTANCES:
        raise ValueError(f"unknown loss_function {kind!r}: choose one of {', '.join(_DISTANCES)}")
    return _DISTANCES[kind](prediction, target, reduction="none")


def reduce(loss: Tensor, weight: Tensor | None = None, reduction: Reduction = "mean") -> Tensor:
    """Reduce per-sample losses; every objective's reductions pass through here.

    Args:
        loss: `[*]`.
        weight: `[*]`, importance-sampling weights; their mean is self-normalised: `sum(w l) / sum(w)`.
        reduction: `mean`, `sum`, or `none` (per sample).

    Returns:
        A scalar, or `[*]` with `none`.

    Raises:
        ValueError: if `weight` has another shape or `reduction` is unknown.
    """
    if weight is not None:
        if weight.shape != loss.shape:
            raise ValueError(f"weight {tuple(weight.shape)} and loss {tuple(loss.shape)} must have one shape")
        loss = loss * weight
    match reduction:
        case "mean":
            return loss.mean() if weight is None else loss.sum() / weight.sum()
        case "sum":
            return loss.sum()
        case "none":
            return loss
    raise ValueError(f"unknown reduction {reduction!r}: choose none, mean or sum")
