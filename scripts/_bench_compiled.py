"""An update of `heads` and `aggregators` as one graph, made as the compiled engine makes that of an objective."""

from dataclasses import dataclass

import torch
from _bench_work import Backward, Update, Work
from torch import Tensor, nn

from mhrl.engine.adam import Adam, Change
from mhrl.engine.stand_ins import with_stand_ins
from mhrl.engine.traced import TracedFunction

Name = tuple[str, ...]
MOMENTS = ("first", "second", "steps")


def compiled(work: Work, backward: Backward) -> Update:
    """Losses, gradients and Adam of `work` in one graph that changes parameters and moments in place."""
    network, adam = nn.ModuleList([work.trunk, *work.heads]), Adam(work.optimizer)
    parameters = dict(network.named_parameters())
    held: dict[Name, Tensor] = {("parameter", name): parameter for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        held |= {("moment", name, part): one for part, one in zip(MOMENTS, adam.state(parameter), strict=True)}

    def function(tensors: dict[Name, Tensor]) -> list[Tensor]:
        stand_ins = {name[1]: tensor for name, tensor in tensors.items() if name[0] == "parameter"}
        with_stand_ins(network, stand_ins, lambda: backward(work))
        with torch.no_grad():
            changes = []
            for name, value in stand_ins.items():
                assert value.grad is not None
                first, second, steps = (tensors["moment", name, part] for part in MOMENTS)
                changes.append(Change(parameters[name], value, value.grad, (first, second, steps)))
            adam.step(changes, applied=torch.ones((), dtype=torch.bool))
        return []

    traced = TracedFunction(function, held)
    return _Replay(traced, [held[name].detach() for name in traced.used], backward)


@dataclass(frozen=True)
class _Replay:
    """Calls a graph on its inputs, and keeps the backward pass alive: the graph calls rules that belong to it."""

    traced: TracedFunction
    inputs: list[Tensor]
    backward: Backward

    def __call__(self) -> None:
        """One update."""
        self.traced(self.inputs)
