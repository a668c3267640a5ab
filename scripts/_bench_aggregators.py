"""`aggregators`: a whole step by aggregator, over the plain step, and beside torchjd.

The plain step runs head after head and adds the losses up. The rules run as mhrl runs them, heads together. torchjd's
`mtl_backward` (pip install 'mhrl[balancing]') works at the parameters.
"""

from types import SimpleNamespace

import torch
from _bench_clock import compared, in_turns, name_of, ratio
from _bench_engines import ENGINES, eager
from _bench_report import Result, Row, spread
from _bench_work import Backward, Update, Work, described, loop
from tensordict import TensorDict
from torch import nn
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
from mhrl.engine.base import flush_denormals

RULES: tuple[type[RowWeighting], ...] = (UPGrad, PCGrad, MGDA, IMTLG, AlignedMTL, ConFIG)
PLAIN, TOGETHER = "plain, looped", "weighted_sum"
WARM_UP = 3
PAIRS_OVER = 100
"""Updates in which the signs of the two levels are compared."""


def run(options: SimpleNamespace) -> Result:
    """Measure each number of heads."""
    rows: list[Row] = []
    for count in options.heads:
        rows += compare(count, options)
    notes = [
        described(options),
        "x: over that step of the same engine; x eager: over that of engine eager. "
        + in_turns(options.rounds, options.updates, "updates"),
    ]
    for count in options.heads:
        share = agreement(count, options, PAIRS_OVER)
        notes.append(
            f"{count} heads: conflict signs of the two levels agree in {share:.0%} of pairs ({PAIRS_OVER} updates)"
        )
    return Result(rows, notes)


def aggregated(aggregator: BackwardAggregator) -> Backward:
    """The backward pass of mhrl with `aggregator`."""

    def backward(work: Work) -> None:
        rows = aggregator.fan_out(work.trunk(work.inputs), work.names)
        apart = isinstance(rows, Aliases)
        losses = work.together(
            rows.stack(work.names) if isinstance(rows, Aliases) else rows[work.names[0]], apart=apart
        )
        aggregator.backward(TensorDict(dict(zip(work.names, losses.unbind(), strict=True))))

    return backward


def at_params(work: Work, rule: type[RowWeighting], refresh: int = 1) -> Backward:
    """The same with a rule at the level of the trunk's parameters."""
    return aggregated(rule(level="params", shared=work.trunk.parameters(), refresh=refresh))


def torchjd(rule: nn.Module) -> Backward:
    """The backward pass of torchjd with the same rule, as its documentation has it."""

    def backward(work: Work) -> None:
        features = work.trunk(work.inputs)
        mtl_backward(work.looped(features), features=features)
        jac_to_grad(work.trunk.parameters(), rule)

    return backward


def candidates(count: int, options: SimpleNamespace) -> dict[str, Update]:
    """Every step that is compared, by name; those of engines other than `eager` end in its name."""
    updates: dict[str, Update] = {}
    for engine in options.engine:
        make, suffix = ENGINES[engine], "" if engine == "eager" else f", {engine}"
        updates[f"{PLAIN}{suffix}"] = make(Work(count, options), loop)
        updates[f"{TOGETHER}{suffix}"] = make(Work(count, options), aggregated(WeightedSum()))
        for rule in RULES:
            updates[f"{rule.name}@features{suffix}"] = make(Work(count, options), aggregated(rule()))
    if "eager" in options.engine:
        for rule in RULES:
            work = Work(count, options)
            updates[f"{rule.name}@params"] = eager(work, at_params(work, rule))
        work = Work(count, options)
        updates["upgrad@params, refresh=10"] = eager(work, at_params(work, UPGrad, 10))
        updates["torchjd UPGrad"] = eager(Work(count, options), torchjd(TorchJDUPGrad()))
    return updates


def agreement(count: int, options: SimpleNamespace, updates: int) -> float:
    """How often two rows are in conflict at both levels or at neither, over the first `updates` of a plain training."""
    work, found = Work(count, options), []
    rule, train = UPGrad(level="params", shared=work.trunk.parameters()), eager(work, loop)
    for _ in range(updates):
        features = work.trunk(work.inputs)
        losses = work.looped(features)
        rows = torch.stack([torch.autograd.grad(loss, features, retain_graph=True)[0].flatten() for loss in losses])
        found.append(sign_agreement(rows @ rows.T, rule.gram(rows, (features,))).item())
        train()
    return sum(found) / len(found)


def compare(count: int, options: SimpleNamespace) -> list[Row]:
    """The rows of one number of heads."""
    updates = candidates(count, options)
    with flush_denormals():  # as in training
        times = compared(updates, WARM_UP, options)
    rows: list[Row] = []
    for name, found in times.items():
        suffix = ", compiled" if name.endswith(", compiled") else ""
        row: Row = {"heads": count, "step": name, **spread(f"ms {name_of(options.threads)}", found)}
        row |= {f"x {plain}": ratio(found, times[f"{plain}{suffix}"]) for plain in (PLAIN, TOGETHER)}
        if "eager" in options.engine:
            row[f"x eager {PLAIN}"] = ratio(found, times[PLAIN])
        rows.append(row)
    return rows
