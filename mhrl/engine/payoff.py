"""When a graph has won back the time that it took to compile."""

import math
from typing import final

RUNS = 5
"""Of which the fastest counts."""


@final
class Payoff:
    """Listens to the first runs of a graph.

    Args:
        name: of what was compiled.
        compiling: seconds that it took.
        eager: seconds of what a run of the graph replaces; a little less, for it is without the optimizer's step.
    """

    def __init__(self, name: str, compiling: float, eager: float) -> None:
        self._name, self._compiling, self._eager = name, compiling, eager
        self._runs: list[float] = []

    def after(self, run: float) -> str | None:
        """Hear of a run of some seconds; what is to be said, once there were enough."""
        if len(self._runs) == RUNS:
            return None
        self._runs.append(run)
        if len(self._runs) < RUNS:
            return None
        fastest = min(self._runs)
        before = f"compiled the update of {self._name} in {self._compiling:.1f} s: it takes {fastest * 1e3:.2f} ms"
        before = f"{before} instead of about {self._eager * 1e3:.2f} ms"
        if fastest >= self._eager:
            return f"{before}; this does not pay, engine=eager is faster here"
        return f"{before}, which pays off after about {math.ceil(self._compiling / (self._eager - fastest)):,} updates"
