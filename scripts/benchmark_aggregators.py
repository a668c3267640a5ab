"""CPU time of a whole step by aggregator, over that of the plain step: `python scripts/benchmark_aggregators.py`.

All do the same work on one thread: a trunk of layers 256-256 over 64 inputs, a head of 33 values for each of K losses
(mean squared errors), gradients, one step of the fused Adam. The plain step runs head after head and adds the losses
up. The rules run as mhrl runs them, heads together. torchjd's `mtl_backward` (pip install 'mhrl[balancing]') works at
the parameters. All take turns in short blocks, and only CPU time counts, so that other work on the machine hardly
shows.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from statistics import median

import torch
from _benchmark import NO_ACTION, begin, block
from rich.table import Column, Table
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional as F
from torchjd.aggregation import UPGrad as TorchJDUPGrad
from torchjd.autojac import jac_to_grad, mtl_backward

from mhrl.aggregators import (
    IMTLG,
    MGDA,
    Aliases,
    AlignedMTL,
    BackwardAggregator,
    ConFIG,
    PCGrad,
    RowWeighting,
    UPGrad,
    WeightedSum,
    sign_agreement,
)
from mhrl.heads import QHead
from mhrl.layers import mlp

RULES: tuple[type[RowWeighting], ...] = (UPGrad, PCGrad, MGDA, IMTLG, AlignedMTL, ConFIG)
PLAIN = "plain, looped"
Update = Callable[[], None]


class Work:
    """The network, its data and its optimizer; every candidate has one of its own, with the same numbers."""

    def __init__(self, count: int, options: Namespace) -> None:
        torch.manual_seed(0)
        self.trunk = mlp(64, [256, 256])
        self.heads = [QHead(256, NO_ACTION, options.outputs, options.widths, final_init=None) for _ in range(count)]
        self.names = [f"head_{i}" for i in range(count)]
        self.parameters = [*self.trunk.parameters(), *(p for head in self.heads for p in head.parameters())]
        self.optimizer = torch.optim.Adam(self.parameters, lr=3e-4, fused=True)
        self.inputs, self.action = torch.randn(options.batch, 64), torch.zeros(options.batch, 0)
        self.right = torch.randn(options.batch, count, options.outputs)
        self.apart = list(self.right.transpose(0, 1).contiguous())

    def looped(self, features: Tensor) -> list[Tensor]:
        """The losses, head by head."""
        return [F.mse_loss(head(features, self.action), y) for head, y in zip(self.heads, self.apart, strict=True)]

    def together(self, rows: Mapping[str, Tensor]) -> TensorDict:
        """The same, of all heads at once, each through its own row."""
        apart = isinstance(rows, Aliases)
        read = rows.stack(self.names) if isinstance(rows, Aliases) else rows[self.names[0]]
        values = QHead.stacked(self.heads, read, self.action, apart=apart)
        losses = F.mse_loss(values, self.right, reduction="none").mean((0, 2))
        return TensorDict(dict(zip(self.names, losses.unbind(), strict=True)))


def plain(work: Work) -> Update:
    """The step that people write: a loop over heads, the sum of the losses."""

    def update() -> None:
        work.optimizer.zero_grad()
        torch.stack(work.looped(work.trunk(work.inputs))).sum().backward()
        work.optimizer.step()

    return update


def aggregated(work: Work, aggregator: BackwardAggregator) -> Update:
    """The step of mhrl with `aggregator`."""

    def update() -> None:
        work.optimizer.zero_grad()
        aggregator.backward(work.together(aggregator.fan_out(work.trunk(work.inputs), work.names)))
        work.optimizer.step()

    return update


def torchjd(work: Work, rule: nn.Module) -> Update:
    """The step of torchjd with the same rule, as its documentation has it."""

    def update() -> None:
        work.optimizer.zero_grad()
        features = work.trunk(work.inputs)
        mtl_backward(work.looped(features), features=features)
        jac_to_grad(work.trunk.parameters(), rule)
        work.optimizer.step()

    return update


def candidates(count: int, options: Namespace) -> dict[str, Update]:
    """Every step that is compared, by name."""
    updates = {PLAIN: plain(Work(count, options))}
    updates["weighted_sum"] = aggregated(Work(count, options), WeightedSum())
    for rule in RULES:
        updates[f"{rule.name}@features"] = aggregated(Work(count, options), rule())
    for rule in RULES:
        work = Work(count, options)
        updates[f"{rule.name}@params"] = aggregated(work, rule(level="params", shared=work.trunk.parameters()))
    work = Work(count, options)
    often = UPGrad(level="params", shared=work.trunk.parameters(), refresh=10)
    updates["upgrad@params, refresh=10"] = aggregated(work, often)
    updates["torchjd UPGrad"] = torchjd(Work(count, options), TorchJDUPGrad())
    return updates


def agreement(count: int, options: Namespace, updates: int) -> float:
    """How often two rows are in conflict at both levels or at neither, over the first `updates` of a plain training."""
    work, found = Work(count, options), []
    at_params = UPGrad(level="params", shared=work.trunk.parameters())
    for _ in range(updates):
        features = work.trunk(work.inputs)
        losses = work.looped(features)
        rows = torch.stack([torch.autograd.grad(loss, features, retain_graph=True)[0].flatten() for loss in losses])
        found.append(sign_agreement(rows @ rows.T, at_params.gram(rows, (features,))).item())
        plain(work)()
    return sum(found) / len(found)


def compare(count: int, options: Namespace) -> dict[str, tuple[float, float]]:
    """Medians over the blocks: milliseconds of an update, and its ratio to the plain one turn by turn."""
    updates = candidates(count, options)
    for update in updates.values():  # the first updates allocate
        block(update, 3)
    turns = [{name: block(update, options.updates) for name, update in updates.items()} for _ in range(options.blocks)]
    return {
        name: (median(turn[name] for turn in turns), median(turn[name] / turn[PLAIN] for turn in turns))
        for name in updates
    }


def main() -> None:
    options, console = begin(__doc__.split(":")[0], [3, 17], 15, 10)
    columns = [compare(count, options) for count in options.heads]
    names = (f"{count} heads, {what}" for count in options.heads for what in ("ms", "x plain"))
    table = Table(Column("step", no_wrap=True), *names)
    for name in columns[0]:
        numbers = ((f"{column[name][0]:.2f}", f"{column[name][1]:.2f}") for column in columns)
        table.add_row(name, *(number for pair in numbers for number in pair))
    console.print(table)
    for count in options.heads:
        agreed = agreement(count, options, 100)
        console.print(f"{count} heads: conflict signs of the two levels agree in {agreed:.0%} of pairs (100 updates)")


if __name__ == "__main__":
    main()
