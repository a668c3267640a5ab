"""The work of `heads` and `aggregators`: a trunk, K heads, a loss for each.

Trunk 64-256-256, mean squared errors, Adam. Shapes: `B` batch, `K` heads, `O` outputs.
"""

from collections.abc import Callable
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mhrl.heads import QHead
from mhrl.layers import mlp

TRUNK = (64, 256, 256)
NO_ACTION = gym.spaces.Box(np.zeros(0, np.float32), np.zeros(0, np.float32))


class Work:
    """The network, its data and its optimizer; every candidate has one of its own, with the same numbers.

    Args:
        count: `K`.
        options: `batch`, `outputs`, and `widths`, the hidden layers of a head.
    """

    def __init__(self, count: int, options: SimpleNamespace) -> None:
        torch.manual_seed(0)
        inputs, *widths = TRUNK
        self.trunk = mlp(inputs, widths)
        self.heads = [
            QHead(widths[-1], NO_ACTION, options.outputs, options.widths, final_init=None) for _ in range(count)
        ]
        self.names = [f"head_{i}" for i in range(count)]
        self.parameters = [*self.trunk.parameters(), *(p for head in self.heads for p in head.parameters())]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.parameters, lr=3e-4, fused=True)
        self.inputs, self.action = torch.randn(options.batch, inputs), torch.zeros(options.batch, 0)
        # Each layout is the one that reads fastest.
        self.right = torch.randn(options.batch, count, options.outputs)
        self.apart = list(self.right.transpose(0, 1).contiguous())

    def looped(self, features: Tensor) -> list[Tensor]:
        """The `K` losses, head by head."""
        return [F.mse_loss(head(features, self.action), y) for head, y in zip(self.heads, self.apart, strict=True)]

    def together(self, features: Tensor, *, apart: bool = False) -> Tensor:
        """The losses `[K]`, of all heads at once; of features for each, if `apart`."""
        values = QHead.stacked(self.heads, features, self.action, apart=apart)
        return F.mse_loss(values, self.right, reduction="none").mean((0, 2))


def described(options: SimpleNamespace) -> str:
    """The work in words."""
    return (
        f"Trunk {'-'.join(map(str, TRUNK))}, hidden layers of a head {list(options.widths)}, {options.outputs} outputs "
        f"a head, batch {options.batch}, float32: losses, gradients, Adam."
    )


Backward = Callable[[Work], None]
"""Leaves the gradients in the parameters."""

Update = Callable[[], object]


def loop(work: Work) -> None:
    """The plain backward pass: head after head, the sum of the losses."""
    torch.stack(work.looped(work.trunk(work.inputs))).sum().backward()
