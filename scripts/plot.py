"""Learning curves over seeds: `python scripts/plot.py RUN [RUN ...] [--metric NAME] [--by KEY ...] [--out FILE]`.

Runs that differ in nothing but their seed are one curve: the interquartile mean over seeds and its bootstrap interval.
`<out>.png` and `<out>.svg` are written, and a table of the last point is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from _differences import group
from _drawing import entitle, look, make_figure, save, style
from _runs import Floats, Run
from _tables import number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "eval/return_mean"
RESAMPLES = 2000


class Curve(NamedTuple):
    """One group over frames; all arrays are `[points]`. `low` and `high` bound the interval, NaN of one seed."""

    seeds: int
    frames: Floats
    mean: Floats
    low: Floats
    high: Floats


def interquartile(values: Floats) -> tuple[Floats, Floats, Floats]:
    """The interquartile mean over seeds, and its 95% bootstrap interval, of each point.

    The mean leaves a quarter of the seeds out at each end, rounded down: of fewer than four seeds it is their mean. The
    interval is that of percentiles over seeds drawn with replacement, with the same draws at each point and in each
    call.

    Args:
        values: `[seeds, points]`.

    Returns:
        Mean, lower and upper bound, each `[points]`; of one seed the bounds are NaN.

    Raises:
        SystemExit: scipy is not installed.
    """
    try:
        from scipy.stats import bootstrap, trim_mean
    except ModuleNotFoundError as error:
        raise SystemExit("curves need scipy: pip install 'mhrl[plot]'") from error

    def statistic(seeds: Floats, axis: int) -> Floats:
        return trim_mean(seeds, 0.25, axis=axis)

    mean = statistic(values, 0)
    if len(values) == 1:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    options = {"confidence_level": 0.95, "method": "percentile", "n_resamples": RESAMPLES, "vectorized": True}
    interval = bootstrap((values,), statistic, axis=0, rng=np.random.default_rng(0), **options).confidence_interval
    return mean, interval.low, interval.high


def curve(label: str, runs: Sequence[Run], metric: str) -> tuple[Curve, str]:
    """The curve of a group's runs, and a note where some of their points are left out.

    Raises:
        SystemExit: two runs have the same seed, a run has no such metric, or the runs have no point in common.
    """
    of_seed: dict[int, Run] = {}
    for run in runs:
        other = of_seed.setdefault(seed := run.setting("seed"), run)
        if other is not run:
            both = f"{other.path} and {run.path} are both {label!r} with seed {seed}"
            raise SystemExit(f"{both}: leave one out, or tell them apart by --by")
    series = []
    for run in of_seed.values():
        frames, values = run.metric(metric)
        finite = np.isfinite(values)
        if not finite.any():
            raise SystemExit(f"{run.folder.metrics} has no {metric}")
        series.append(dict(zip(frames[finite].tolist(), values[finite].tolist(), strict=True)))
    points = sorted(set.intersection(*(set(found) for found in series)))
    every = len(set().union(*series))
    if not points:
        raise SystemExit(f"the runs of {label!r} have no point of {metric} in common")
    left_out = every - len(points)
    note = f"{label}: {left_out} of {every} points are left out, which not every seed has" if left_out else ""
    values = np.array([[found[frames] for frames in points] for found in series])
    return Curve(len(series), np.array(points), *interquartile(values)), note


def draw(curves: Mapping[str, Curve], metric: str) -> Figure:
    """All curves in one figure."""
    figure = make_figure(8.2, 4.2 + 0.2 * len(curves))
    axes = figure.subplots()
    for index, (label, found) in enumerate(curves.items()):
        color, dash = look(index)
        seeds = f"{found.seeds} seed" + ("s" if found.seeds > 1 else "")
        (line,) = axes.plot(found.frames, found.mean, color=color, linestyle=dash, label=f"{label} ({seeds})", zorder=3)
        line.set_marker("." if len(found.frames) == 1 else "")
        axes.fill_between(found.frames, found.low, found.high, color=color, alpha=0.18, linewidth=0)
    style(axes, "frames", metric)
    entitle(axes, "Learning curves", "interquartile mean over seeds; band: 95% bootstrap interval")
    figure.legend(loc="outside lower left", frameon=False, fontsize=8, handlelength=3)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description="Learning curves over seeds.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--metric", default=METRIC, help=f"what is drawn over frames; {METRIC}, if left out")
    parser.add_argument(
        "--by", nargs="+", default=[], metavar="KEY", help="config keys that make groups, and nothing else"
    )
    parser.add_argument("--out", type=Path, default=Path("curves"), metavar="FILE", help="FILE.png and FILE.svg")
    options = parser.parse_args(arguments)
    out = options.out.with_suffix("") if options.out.suffix in (".png", ".svg") else options.out

    console = Console(markup=False, emoji=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1))
    table.add_column("group", overflow="fold")
    for title in ("seeds", "frames", "IQM", "low", "high"):
        table.add_column(title, justify="right", no_wrap=True)
    curves: dict[str, Curve] = {}
    for label, runs in group([Run(path) for path in options.runs], options.by).items():
        curves[label], note = curve(label, runs, options.metric)
        if note:
            console.print(note)
        last = (number(values[-1], 4) for values in curves[label][2:])
        table.add_row(label, str(curves[label].seeds), f"{curves[label].frames[-1]:,.0f}", *last)
    console.print(table)
    files = save(draw(curves, options.metric), out)
    console.print(f"\n{' and '.join(map(str, files))}", soft_wrap=True)


if __name__ == "__main__":
    main()
