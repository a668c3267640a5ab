"""What a run has measured of the rows at its trunk, at one level."""

from functools import cached_property
from itertools import permutations
from typing import final

import numpy as np
from _runs import Floats, Run

PREFIXES = {"features": "trunk", "params": "trunk/params"}
PLACES = {"features": "the features", "params": "the trunk's parameters"}


@final
class Rows:
    """The rows of a run at one level.

    Args:
        run: a run.
        level: `features` or `params`.
    """

    def __init__(self, run: Run, level: str) -> None:
        self.run = run
        self.level = level
        self.place = PLACES[level]
        self._prefix = PREFIXES[level]

    @cached_property
    def names(self) -> list[str]:
        """The rows, in the order of the log."""
        return self.run.names(f"{self._prefix}/grad_norm/")

    def norm(self, row: str) -> tuple[Floats, Floats]:
        """Its gradient's norm over frames."""
        return self.metric(f"grad_norm/{row}")

    def share(self, row: str) -> tuple[Floats, Floats]:
        """Its norm over the sum of norms, over frames."""
        return self.metric(f"grad_share/{row}")

    def alignment(self, row: str) -> Floats:
        """The cosine of its gradient and the direction that the trunk receives; NaN where one of them is 0."""
        names = (f"grad_dot/{row}", f"grad_norm/{row}", "combined_norm")
        series = [dict(zip(*self.metric(name), strict=True)) for name in names]
        logged = [[found[at] for found in series] for at in series[0] if all(at in found for found in series)]
        return np.array([dot / (norm * whole) if norm * whole > 0 else np.nan for dot, norm, whole in logged])

    @cached_property
    def cosines(self) -> dict[tuple[str, str], Floats]:
        """The cosine of each pair of rows that was logged, over frames; of whose names either may come first."""
        found = {(a, b): self.metric(f"grad_cos/{a}__{b}")[1] for a, b in permutations(self.names, 2)}
        return {pair: values for pair, values in found.items() if len(values)}

    def metric(self, name: str) -> tuple[Floats, Floats]:
        """A metric of this level over frames."""
        return self.run.metric(f"{self._prefix}/{name}")


def levels(run: Run) -> list[Rows]:
    """The levels at which a run's aggregator has measured rows, the one where it works last.

    A run that went on with another rule may hold rows of a level that is not this rule's.
    """
    there = ("features", "params") if str(run.fact("aggregator")).endswith("@params") else ("features",)
    return [rows for rows in (Rows(run, level) for level in there) if rows.names]


def recent(values: Floats) -> float:
    """The mean of the last tenth of the values, at least one; NaN of none."""
    last = values[-max(1, -(-len(values) // 10)) :]
    last = last[np.isfinite(last)]
    return float(last.mean()) if len(last) else float("nan")
