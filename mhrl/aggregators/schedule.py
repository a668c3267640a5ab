"""The schedule: static weights times factors that are functions of the frames so far."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from mhrl.aggregators.loss_weighting import LossWeighting

KINDS = ("constant", "linear", "cosine", "piecewise")


@final
@dataclass(frozen=True)
class Curve:
    """A factor over frames, through points; before the first and after the last one it has their values.

    Attributes:
        kind: `linear` and `cosine` (half a period) go from point to point, `piecewise` holds each value until the next
            point, `constant` is one value.
        values: of the points, finite.
        frames: of the points, growing; none for `constant`.

    Raises:
        ValueError: if these do not fit together.
    """

    kind: Literal["constant", "linear", "cosine", "piecewise"]
    values: Sequence[float]
    frames: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}: one of {', '.join(KINDS)} is expected")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"values is {list(self.values)}: finite numbers are expected")
        if self.kind == "constant" and (len(self.values), len(self.frames)) != (1, 0):
            raise ValueError(
                f"values is {list(self.values)} and frames {list(self.frames)}: kind constant has one value and no "
                "frames"
            )
        if self.kind != "constant" and (len(self.values) != len(self.frames) or not self.frames):
            raise ValueError(
                f"values is {list(self.values)} and frames {list(self.frames)}: as many of one as of the other, and at "
                "least one, are expected"
            )
        if any(later <= earlier for earlier, later in zip(self.frames, self.frames[1:], strict=False)):
            raise ValueError(f"frames is {list(self.frames)}: growing numbers are expected")

    def at(self, frames: int) -> float:
        """The factor at `frames`."""
        passed = bisect_right(self.frames, frames)
        if passed == 0:
            return self.values[0]
        if passed == len(self.frames) or self.kind == "piecewise":
            return self.values[passed - 1]
        (start, end), (first, second) = self.frames[passed - 1 : passed + 1], self.values[passed - 1 : passed + 1]
        share = (frames - start) / (end - start)
        if self.kind == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return first + share * (second - first)

    def __str__(self) -> str:
        ends = dict.fromkeys(f"{value:g}" for value in (self.values[0], self.values[-1]))
        return " ".join([self.kind, " to ".join(ends)])


@final
class Schedule(LossWeighting):
    """The weight of a loss is its static one times the value of its curve; a loss without a curve keeps its weight.

    Where the product is 0 the loss is not computed.

    Args:
        *arguments, **options: those of `BackwardAggregator`.
        schedules: `{loss: curve}`.
    """

    name = "schedule"

    def __init__(self, *arguments: Any, schedules: Mapping[str, Curve] | None = None, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.schedules = dict(schedules or {})

    def weight(self, loss: str, frames: int = 0) -> float:
        """See `BackwardAggregator.weight`."""
        static = super().weight(loss, frames)
        return static * self.schedules[loss].at(frames) if loss in self.schedules else static

    def sets(self, loss: str) -> str:
        """See `BackwardAggregator.sets`."""
        return str(self.schedules[loss]) if loss in self.schedules else ""
