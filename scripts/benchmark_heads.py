"""CPU time of heads that are computed together, over that of a loop: `python scripts/benchmark_heads.py`.

Both do the same work on one thread: a trunk of layers 256-256 over 64 inputs, a `QHead` for each branch, the sum of
their mean squared errors, its gradient, one step of the fused Adam. They take turns in short blocks, and only CPU time
counts, so that other work on the machine hardly shows.
"""

import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from statistics import median

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mhrl.heads import QHead
from mhrl.layers import mlp

NO_ACTION = gym.spaces.Box(np.zeros(0, np.float32), np.zeros(0, np.float32))
Losses = Callable[[Sequence[QHead], Tensor, Tensor, Tensor], Tensor]


def looped(heads: Sequence[QHead], features: Tensor, action: Tensor, right: Tensor) -> Tensor:
    """The losses `[K]` of targets `[K, B, O]`, head by head."""
    return torch.stack([F.mse_loss(head(features, action), own) for head, own in zip(heads, right, strict=True)])


def stacked(heads: Sequence[QHead], features: Tensor, action: Tensor, right: Tensor) -> Tensor:
    """The same, of all heads together."""
    values = QHead.stacked(heads, features, action)
    return F.mse_loss(values, right.transpose(0, 1), reduction="none").mean((0, 2))


def make_update(losses: Losses, count: int, options: Namespace) -> Callable[[], Tensor]:
    """One update of `count` heads as a function that returns their losses; `losses` does not change the numbers."""
    torch.manual_seed(0)
    trunk = mlp(64, [256, 256])
    heads = [QHead(256, NO_ACTION, options.outputs, options.widths, final_init=None) for _ in range(count)]
    parameters = [*trunk.parameters(), *(parameter for head in heads for parameter in head.parameters())]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=True)
    inputs, action = torch.randn(options.batch, 64), torch.zeros(options.batch, 0)
    # Each layout is the one that reads fastest.
    right = torch.randn(options.batch, count, options.outputs).transpose(0, 1)
    right = right.contiguous() if losses is looped else right

    def update() -> Tensor:
        optimizer.zero_grad()
        found = losses(heads, trunk(inputs), action, right)
        found.sum().backward()
        optimizer.step()
        return found.detach()

    return update


def block(update: Callable[[], Tensor], updates: int) -> float:
    """CPU milliseconds an update."""
    start = time.process_time()
    for _ in range(updates):
        update()
    return (time.process_time() - start) / updates * 1e3


def compare(count: int, options: Namespace) -> tuple[float, float, float]:
    """Medians over the blocks: milliseconds of an update by the loop and together, and their ratio turn by turn."""
    loop, together = (make_update(losses, count, options) for losses in (looped, stacked))
    for update in (loop, together):  # the first updates allocate
        block(update, 3)
    turns = [(block(loop, options.updates), block(together, options.updates)) for _ in range(options.blocks)]
    return median(a for a, _ in turns), median(b for _, b in turns), median(b / a for a, b in turns)


def main() -> None:
    parser = ArgumentParser(description=__doc__.split(":")[0], formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument("--heads", type=int, nargs="+", default=[17, 64], help="numbers of heads")
    parser.add_argument("--widths", type=int, nargs="*", default=[], help="hidden layers of each head")
    parser.add_argument("--outputs", type=int, default=33, help="outputs of a head")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument("--blocks", type=int, default=21, help="turns of each")
    parser.add_argument("--updates", type=int, default=20, help="updates of a turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    console = Console()
    console.print(
        f"trunk 64-256-256, hidden layers of a head {options.widths}, {options.outputs} outputs a head, batch "
        f"{options.batch}, float32, 1 thread, torch {torch.__version__}; medians of {options.blocks} blocks of "
        f"{options.updates} updates"
    )
    table = Table("heads", "loop, ms", "stacked, ms", "stacked / loop")
    for count in options.heads:
        loop, together, ratio = compare(count, options)
        table.add_row(str(count), f"{loop:.2f}", f"{together:.2f}", f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
