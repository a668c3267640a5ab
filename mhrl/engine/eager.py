"""The eager engine: `TensorDict.backward`, any aggregator, any optimizer, starts at once."""

from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mhrl.engine.base import Engine, StepResult, refuse
from mhrl.engine.module_figures import total_norm


@final
class EagerEngine(Engine):
    """Plain autograd."""

    def _step(
        self, batch: TensorDictBase, active: tuple[str, ...], frames: int, updates: int, statistics: bool
    ) -> StepResult:
        """See `Engine._step`."""
        losses, metrics = self.losses(batch, active)
        self._drop_gradients()
        self.aggregator.backward(losses, frames)
        losses = losses.detach()
        norm = total_norm([p.grad for p in self.parameters if p.grad is not None])
        self._check_finite(losses, norm)
        figures = self._modules.before() if statistics else dict
        self.clip(self.parameters, norm)
        self.optimizer.step()
        if updates:
            self.objective.update_target(updates)
        return StepResult(losses, metrics, norm, figures())

    def _check_finite(self, losses: TensorDict, norm: Tensor) -> None:
        """The single host synchronisation of an update."""
        if not torch.isfinite(torch.stack([norm, *losses.values()])).all():
            self._drop_gradients()
            refuse(losses, norm)
