"""The compiled engine: the eager engine's mathematics, a whole update as one graph.

It traces the objective and the aggregator that the eager engine runs: what differs is the order of additions. Where
they cannot be traced, it is the eager engine, and says so in one line.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, final

from tensordict import TensorDictBase
from torch import Tensor

from mhrl.engine.adam import Adam, unsupported
from mhrl.engine.base import Engine, StepResult, refuse
from mhrl.engine.eager import EagerEngine
from mhrl.engine.payoff import RUNS, Payoff
from mhrl.engine.update_graph import UpdateGraph

OFTEN = 8
"""A target that moves less often than with every 8th update moves outside the graph, which saves a second one."""

_log = logging.getLogger("mhrl")


@final
class CompiledEngine(Engine):
    """One graph for each set of active losses and each structure of a batch, compiled when it is needed first.

    A step that is refused is computed, and not applied. The optimizer is Adam or AdamW; its settings hold for good.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._eager = EagerEngine(*arguments, **options)
        self._adam = Adam(self.optimizer)
        self._graphs: dict[tuple[tuple[str, ...], bool], list[UpdateGraph]] = {}
        self._payoffs: dict[UpdateGraph, Payoff] = {}
        self._refused = False
        # Its tensors are others then.
        self.optimizer.register_load_state_dict_post_hook(lambda _: self._graphs.clear())

    def _step(
        self, batch: TensorDictBase, active: tuple[str, ...], frames: int, updates: int, statistics: bool
    ) -> StepResult:
        """See `Engine._step`."""
        every = self.objective.target_every
        moves = updates > 0 and updates % every == 0
        static = self._static_weights(active, frames)
        graph = self._graph(batch, active, static, frames, updates if moves and every <= OFTEN else 0)
        if graph is None:
            return self._eager._step(batch, active, frames, updates, statistics)
        figures = self._figures(batch, active, frames) if statistics else dict
        began = time.perf_counter()
        result, applied, gram = graph.run(batch, static)
        if not applied:
            self.aggregator.check(result.losses)
            refuse(result.losses, result.grad_norm)
        if said := self._payoffs[graph].after(time.perf_counter() - began):
            _log.info("%s", said)
        self.aggregator.observe(result.losses, graph.rows, gram)
        if moves and every > OFTEN:
            self.objective.update_target(updates)
        result.statistics.update(figures())
        return result

    def _graph(
        self, batch: TensorDictBase, active: tuple[str, ...], static: Tensor, frames: int, updates: int
    ) -> UpdateGraph | None:
        """The graph for this batch and these losses; None if there can be none."""
        if self._refused:
            return None
        graphs = self._graphs.setdefault((active, updates > 0), [])
        for graph in graphs:
            if graph.fits(batch):
                return graph
        start = time.perf_counter()
        try:
            if reason := self.aggregator.untraceable or unsupported(self.optimizer):
                raise TypeError(reason)
            graph = UpdateGraph(self, self._adam, batch, active, static, updates)
        except Exception as error:  # a fault of the objective itself comes up again in the eager engine
            self._refused = True
            first = next(iter(str(error).splitlines()), type(error).__name__)
            _log.warning("engine=compiled is not possible here, the eager engine goes on: %s", first)
            _log.debug("the whole reason", exc_info=True)
            return None
        seconds = time.perf_counter() - start
        eager = min(self._eager_seconds(batch, active, frames) for _ in range(RUNS))
        self._payoffs[graph] = Payoff(", ".join(active), seconds, eager)
        graphs.append(graph)
        return graph

    def _differentiate(self, batch: TensorDictBase, active: tuple[str, ...], frames: int) -> None:
        """A pass of the eager engine that leaves nothing but gradients."""
        with self._leaving_no_trace():
            losses, _ = self.losses(batch, active)
            self._drop_gradients()
            self.aggregator.differentiate(losses, self._static_weights(losses.keys(), frames))

    def _figures(self, batch: TensorDictBase, active: tuple[str, ...], frames: int) -> Callable[[], dict[str, Tensor]]:
        """See `ModuleFigures.before`."""
        self._differentiate(batch, active, frames)
        figures = self._modules.before()
        self._drop_gradients()
        return figures

    def _eager_seconds(self, batch: TensorDictBase, active: tuple[str, ...], frames: int) -> float:
        """How long the eager engine takes for the gradients."""
        start = time.perf_counter()
        self._differentiate(batch, active, frames)
        self._drop_gradients()
        return time.perf_counter() - start
