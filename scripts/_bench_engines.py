"""How an update of `heads` and `aggregators` is run."""

from collections.abc import Callable

from _bench_compiled import compiled
from _bench_work import Backward, Update, Work


def eager(work: Work, backward: Backward) -> Update:
    """One update as people write it."""

    def update() -> None:
        work.optimizer.zero_grad()
        backward(work)
        work.optimizer.step()

    return update


ENGINES: dict[str, Callable[[Work, Backward], Update]] = {"eager": eager, "compiled": compiled}
"""By the option `engine`."""
