"""One update of some losses, on batches of one structure, as one compiled function that changes everything in place."""

from collections.abc import Mapping
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mhrl.engine.adam import Adam, Change
from mhrl.engine.base import Engine, StepResult
from mhrl.engine.module_figures import total_norm
from mhrl.engine.stand_ins import with_stand_ins
from mhrl.engine.traced import TracedFunction

Key = str | tuple[str, ...]
Name = tuple[Any, ...]
"""Of a tensor: `("module", name)`, `("moment", parameter's name, 0 to 2)`, `("batch", key)` or `STATIC`."""

STATIC: Name = ("static weights",)


@final
class UpdateGraph:
    """Target values, losses, backward, rule, clip, Adam and the target's move; all of it is applied, or nothing.

    It changes parameters and persistent buffers of the objective; other buffers are constants.

    Args:
        engine: whose update it is.
        adam: the optimizer's mathematics and state.
        batch: what later ones are like.
        active: names of the losses.
        static: their static weights, `[L]`, which later calls may change.
        updates: the number of an update that moves the target, as this one then does; 0 leaves it alone.

    Attributes:
        rows: names of the rows, for `BackwardAggregator.observe`.
    """

    def __init__(
        self, engine: Engine, adam: Adam, batch: TensorDictBase, active: tuple[str, ...], static: Tensor, updates: int
    ) -> None:
        self._engine, self._adam, self._active, self._updates = engine, adam, active, updates
        self._batch_size = batch.batch_size
        self.rows: tuple[str, ...] = ()
        self._trained: list[Tensor] = []
        self._metrics: list[Key] = []
        self._of_batch: dict[Key, Key] = {}
        objective = engine.objective
        held = dict(objective.named_parameters()) | _persistent_buffers(objective)
        self._names = {parameter: name for name, parameter in held.items()}
        moments = {parameter: adam.state(parameter) for parameter in engine.parameters}
        fixed: dict[Name, Tensor] = {("module", name): tensor for name, tensor in held.items()}
        for parameter, parts in moments.items():
            fixed |= {("moment", self._names[parameter], i): part for i, part in enumerate(parts)}
        leaves = {("batch", key): batch.get(key) for key in batch.keys(include_nested=True, leaves_only=True)}
        self._traced = TracedFunction(self._function, fixed | leaves | {STATIC: static})
        used = self._traced.used
        self._fixed = [fixed[name].detach() for name in used if name in fixed]
        self._like = {name[1]: _structure(leaves[name]) for name in used if name in leaves}
        self._weighted = STATIC in used
        for parameter in self._trained:
            adam.adopt(parameter, moments[parameter])

    def fits(self, batch: TensorDictBase) -> bool:
        """Whether `batch` is of the structure for which the graph was compiled."""
        leaves = ((batch.get(key, None), like) for key, like in self._like.items())
        return all(leaf is not None and _structure(leaf) == like for leaf, like in leaves)

    def run(self, batch: TensorDictBase, static: Tensor) -> tuple[StepResult, Tensor, Tensor | None]:
        """The update: its result; whether it was applied; and the probe's gradient, if there was a probe."""
        inputs = self._fixed + [batch.get(key) for key in self._like]
        applied, norm, *rest = self._traced([*inputs, static] if self._weighted else inputs)
        losses = dict(zip(self._active, rest, strict=False))
        metrics = dict(zip(self._metrics, rest[len(losses) :], strict=False))
        gram = rest[len(losses) + len(metrics)] if len(rest) > len(losses) + len(metrics) else None
        metrics |= {key: batch.get(of_batch) for key, of_batch in self._of_batch.items()}
        return StepResult(TensorDict(losses), TensorDict(metrics), norm), applied, gram

    def _function(self, tensors: dict[Name, Tensor]) -> list[Tensor]:
        """The update of the tensors that stand in for the modules', and for their moments."""
        held = {name[1]: tensor for name, tensor in tensors.items() if name[0] == "module"}
        return with_stand_ins(self._engine.objective, held, lambda: self._update(tensors))

    def _update(self, tensors: Mapping[Name, Tensor]) -> list[Tensor]:
        """What is traced: applied, norm, losses, metrics, perhaps the probe's gradient; gradients come and go."""
        engine, aggregator = self._engine, self._engine.aggregator
        stand_in = {parameter: tensors["module", name] for parameter, name in self._names.items()}
        leaves = {name[1]: tensor for name, tensor in tensors.items() if name[0] == "batch"}
        batch = TensorDict({}, self._batch_size)
        for key, leaf in leaves.items():
            batch.set(key, leaf)
        losses, metrics = engine.losses(batch, self._active)
        losses = TensorDict({name: losses[name] for name in self._active})  # in the order of the static weights
        with aggregator.standing_in(stand_in):
            self.rows, gram = aggregator.differentiate(losses, tensors[STATIC])
        self._trained = [parameter for parameter in engine.parameters if stand_in[parameter].grad is not None]
        trained = {parameter: stand_in[parameter] for parameter in self._trained}
        with torch.no_grad():
            losses = losses.detach()
            norm = total_norm([value.grad for value in trained.values() if value.grad is not None])
            applied = aggregator.accepts(losses).all() & torch.isfinite(norm)
            engine.clip(trained.values(), norm)
            changes = []
            for parameter, value in trained.items():
                assert value.grad is not None
                first, second, steps = (tensors["moment", self._names[parameter], i] for i in range(3))
                changes.append(Change(parameter, value, value.grad, (first, second, steps)))
            self._adam.step(changes, applied)
            if self._updates:
                self._move_target(tensors, applied)
        found = dict(metrics.detach().items(include_nested=True, leaves_only=True))
        same = {key: next((own for own, leaf in leaves.items() if leaf is value), None) for key, value in found.items()}
        self._of_batch = {key: own for key, own in same.items() if own is not None}
        self._metrics = [key for key, own in same.items() if own is None]
        outputs = [applied, norm, *losses.values(), *(found[key] for key in self._metrics)]
        return outputs if gram is None else [*outputs, gram]

    def _move_target(self, tensors: Mapping[Name, Tensor], applied: Tensor) -> None:
        """The target's move, undone where the step is not applied."""
        target = [tensor for name, tensor in tensors.items() if name[0] == "module" and name[1].startswith("target.")]
        before = [tensor.clone() for tensor in target]
        self._engine.objective.update_target(self._updates)
        for tensor, old in zip(target, before, strict=True):
            tensor.copy_(torch.where(applied, tensor, old))


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that are in the state dict, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    }


def _structure(tensor: Tensor) -> tuple[Any, ...]:
    """What a graph is compiled for."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
