"""`heads`: heads that are computed together, over a loop and over their products alone."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from _bench_clock import compared, in_turns, name_of, ratio
from _bench_engines import ENGINES
from _bench_products import flops, multiply, stack_products
from _bench_report import Result, Row, spread
from _bench_work import TRUNK, Backward, Work, described, loop

from mhrl.engine.base import flush_denormals

WARM_UP = 3
FLOOR = "products alone"


def stacked(work: Work) -> None:
    """The backward pass of all heads together."""
    work.together(work.trunk(work.inputs)).sum().backward()


WAYS: dict[str, Backward] = {"loop": loop, "stacked": stacked}


def run(options: SimpleNamespace) -> Result:
    """Measure each number of heads."""
    rows: list[Row] = []
    for count in options.heads:
        rows += compare(count, options)
    return Result(
        rows,
        [
            described(options),
            "x loop: over the loop of the same engine; x eager loop: over that of engine eager, so compiling counts, "
            "too. Products: the heads' first layers in one, into memory that is there. "
            + in_turns(options.rounds, options.updates, "updates"),
        ],
    )


def compare(count: int, options: SimpleNamespace) -> list[Row]:
    """The rows of one number of heads."""
    sizes = [*options.widths, options.outputs]
    products = stack_products(TRUNK, count, sizes, options.batch)
    updates: dict[str, Callable[[], object]] = {
        f"{way}, {engine}": ENGINES[engine](Work(count, options), backward)
        for engine in options.engine
        for way, backward in WAYS.items()
    }
    updates[FLOOR] = partial(multiply, products)
    with flush_denormals():  # as in training
        times = compared(updates, WARM_UP, options)
    rows: list[Row] = []
    for name, found in times.items():
        way, _, engine = name.partition(", ")
        row: Row = {"heads": count, "update": name, **spread(f"ms {name_of(options.threads)}", found)}
        row["x loop"] = ratio(found, times[f"loop, {engine}"]) if engine else None
        if "eager" in options.engine:
            row["x eager loop"] = ratio(found, times["loop, eager"]) if engine else None
        row["x products"] = ratio(found, times[FLOOR])
        row["MFLOP"] = flops(products) / 1e6 if way == FLOOR else None
        rows.append(row)
    return rows
