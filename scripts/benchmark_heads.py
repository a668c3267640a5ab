"""CPU time of heads that are computed together, over that of a loop: `python scripts/benchmark_heads.py`.

Both do the same work on one thread: a trunk of layers 256-256 over 64 inputs, a `QHead` for each branch, the sum of
their mean squared errors, its gradient, one step of the fused Adam. They take turns in short blocks, and only CPU time
counts, so that other work on the machine hardly shows.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from statistics import median

import torch
from _benchmark import NO_ACTION, begin, block
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from mhrl.heads import QHead
from mhrl.layers import mlp

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


def compare(count: int, options: Namespace) -> tuple[float, float, float]:
    """Medians over the blocks: milliseconds of an update by the loop and together, and their ratio turn by turn."""
    loop, together = (make_update(losses, count, options) for losses in (looped, stacked))
    for update in (loop, together):  # the first updates allocate
        block(update, 3)
    turns = [(block(loop, options.updates), block(together, options.updates)) for _ in range(options.blocks)]
    return median(a for a, _ in turns), median(b for _, b in turns), median(b / a for a, b in turns)


def main() -> None:
    options, console = begin(__doc__.split(":")[0], [17, 64], 21, 20)
    table = Table("heads", "loop, ms", "stacked, ms", "stacked / loop")
    for count in options.heads:
        loop, together, ratio = compare(count, options)
        table.add_row(str(count), f"{loop:.2f}", f"{together:.2f}", f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
