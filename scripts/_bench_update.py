"""`update`: one update of the learner on a fixed batch, over the matrix products of that update alone."""

from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace

import torch
from _bench_clock import compared, in_turns, name_of, ratio
from _bench_mhrl import Mhrl, variants
from _bench_products import Product, ddpg_products, flops, multiply
from _bench_report import Result, Row, spread
from _bench_task import Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WARM_UP = 20


def run(options: SimpleNamespace) -> Result:
    """Measure every engine and precision beside the products in that precision."""
    task = Task.of(options)
    updates: dict[str, Callable[[], object]] = {}
    products: dict[str, list[Product]] = {}
    floor_of: dict[str, str] = {}
    for name, words in variants(options).items():
        contestant = Mhrl(task, words)
        contestant.fill()
        contestant.close()
        updates[f"mhrl {name}"] = update_of(contestant)
        precision = "bf16" if name.endswith("bf16") else "fp32"
        floor = floor_of[f"mhrl {name}"] = f"products alone, {precision}"
        network = contestant.parts.network
        sizes = network.trunk.out_features, network.low.numel()
        products[floor] = ddpg_products(*sizes, task.widths, task.batch, DTYPES[precision])
    updates |= {name: partial(multiply, found) for name, found in products.items()}
    times = compared(updates, WARM_UP, options)
    total = flops(next(iter(products.values())))
    rows: list[Row] = [
        {
            "update": name,
            **spread(f"ms {name_of(options.threads)}", found),
            "GFLOP/s": total / median(found) / 1e6,
            "x products": ratio(found, times[floor_of.get(name, name)]),
        }
        for name, found in times.items()
    ]
    return Result(rows, notes(options, total))


def update_of(contestant: Mhrl) -> Callable[[], object]:
    """The learner's update, on one batch."""
    parts = contestant.parts
    (batch,) = parts.replay.batches(1)
    return lambda: parts.learner.update(batch, parts.collector.frames)


def notes(options: SimpleNamespace, total: int) -> list[str]:
    """What the figures mean."""
    return [
        f"DDPG, critic and actor in each update, batch {options.batch}, widths {list(options.widths)}: "
        f"{total / 1e6:.1f} MFLOP of matrix products.",
        "x products: over the same products alone in the same precision, into memory that is there. "
        + in_turns(options.rounds, options.updates, "updates"),
    ]
