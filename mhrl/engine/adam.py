"""Adam as tensor mathematics, over the state of torch's own optimizer.

torch's fused and foreach kernels do not compile on a CPU. A checkpoint holds the same state whichever took the step.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor, Tensor]
"""First moment, second moment, number of steps."""


class Change(NamedTuple):
    """What a step changes.

    Attributes:
        parameter: whose settings hold.
        value: what it is now.
        gradient: of the loss.
        moments: of the value.
    """

    parameter: Tensor
    value: Tensor
    gradient: Tensor
    moments: Moments


KINDS = (torch.optim.Adam, torch.optim.AdamW)


def unsupported(optimizer: torch.optim.Optimizer) -> str:
    """Why a step of `optimizer` is not what `Adam` computes; empty if it is."""
    if type(optimizer) not in KINDS:
        return f"the optimizer is {type(optimizer).__name__}: Adam or AdamW can be traced"
    refused = [name for name in ("amsgrad", "maximize") if any(group[name] for group in optimizer.param_groups)]
    return f"optimizer.{refused[0]} is not traced" if refused else ""


@final
class Adam:
    """Steps of `torch.optim.Adam` (Kingma and Ba, 2015, algorithm 1) or `AdamW` (Loshchilov and Hutter, 2019).

    Args:
        optimizer: one of these; its settings hold for good.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._settings: dict[Tensor, dict[str, Any]] = {
            p: group for group in optimizer.param_groups for p in group["params"]
        }

    def state(self, parameter: Tensor) -> Moments:
        """What the optimizer holds for a parameter, or what it would begin with."""
        held = self._optimizer.state.get(parameter)
        if held:
            return held["exp_avg"], held["exp_avg_sq"], held["step"]
        beside = parameter.device if self._settings[parameter].get("fused") else "cpu"
        zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return zeros, zeros.clone(), torch.zeros((), dtype=torch.float32, device=beside)

    def adopt(self, parameter: Tensor, state: Moments) -> None:
        """Make `state` what the optimizer holds."""
        mean, square, steps = state
        self._optimizer.state[parameter] = {"step": steps, "exp_avg": mean, "exp_avg_sq": square}

    def step(self, changes: Sequence[Change], applied: Tensor) -> None:
        """Change values and moments in place, where `applied` is true.

        Args:
            changes: one for each parameter that has a gradient.
            applied: bool scalar.
        """
        groups = [self._settings[change.parameter] for change in changes]
        logs = [[math.log(beta) if beta else -math.inf for beta in group["betas"]] for group in groups]
        counts = torch.stack([change.moments[2] for change in changes]).double() + 1
        # Powers of all betas at once, and by `exp`: others would inductor compute anew for every few numbers.
        lacks = 1 - torch.exp(counts[:, None] * counts.new_tensor(logs))
        for change, group, lack in zip(changes, groups, lacks.unbind(), strict=True):
            self._step(change, group, lack, applied)

    def _step(self, change: Change, settings: Mapping[str, Any], lack: Tensor, applied: Tensor) -> None:
        """One parameter's; `lack` `[2]` is what averages that began at 0 are short of 1."""
        lr, (beta1, beta2), decay = settings["lr"], settings["betas"], settings["weight_decay"]
        value, gradient, (mean, square, steps) = change.value, change.gradient, change.moments
        decoupled = settings.get("decoupled_weight_decay", isinstance(self._optimizer, torch.optim.AdamW))
        start = value * (1 - lr * decay) if decay and decoupled else value
        gradient = gradient + decay * value if decay and not decoupled else gradient
        new_mean = torch.lerp(mean, gradient, 1 - beta1)
        new_square = beta2 * square + (1 - beta2) * gradient * gradient
        length, root = (lr / lack[0]).to(value), lack[1].sqrt().to(value)
        moved = start - length * new_mean / (new_square.sqrt() / root + settings["eps"])
        for old, new in ((value, moved), (mean, new_mean), (square, new_square), (steps, steps + 1)):
            old.copy_(torch.where(applied, new, old))
