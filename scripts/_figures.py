"""Figures of one run over frames: return, losses, gradient shares. None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from _drawing import (
    FAINT,
    averaged,
    entitle,
    height_for,
    look,
    make_figure,
    name_beside,
    percent,
    style,
    width_for,
)
from _rows import Rows, recent
from _runs import Floats, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 7.2  # of axes, in inches


def draw_return(run: Run, about: str) -> Figure | None:
    """Mean return of evaluations, a band of one standard deviation over their episodes, and episodes of training."""
    frames, mean = run.metric("eval/return_mean")
    std = run.metric("eval/return_std")[1]
    at, episodes = run.metric("episode/return")
    if not len(frames) and not len(at):
        return None
    figure = make_figure(_WIDTH + 1, 4.2)
    axes = figure.subplots()
    if len(frames):
        color = look(0).color
        axes.plot(frames, mean, "o-", color=color, markersize=4, label="evaluations: mean", zorder=3)
        if len(std) == len(mean):
            label = "one standard deviation"
            axes.fill_between(frames, mean - std, mean + std, color=color, alpha=0.2, linewidth=0, label=label)
    if len(at):
        axes.plot(at, episodes, ".", color=FAINT, markersize=4, label="episodes of training")
    style(axes, "frames", "return")
    entitle(axes, "Return", about)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_losses(run: Run, about: str) -> Figure | None:
    """Each loss: on a log scale those that are positive throughout, on a linear one the others."""
    names = run.names("loss/")
    losses = {name: run.metric(f"loss/{name}") for name in names}
    losses = {name: series for name, series in losses.items() if np.isfinite(series[1]).any()}
    positive = [name for name, (_, values) in losses.items() if np.nanmin(values) > 0]
    panels = [part for part in (positive, [name for name in losses if name not in positive]) if part]
    if not panels:
        return None
    heights = [height_for(len(part), 3.2) for part in panels]
    figure = make_figure(width_for(losses, _WIDTH), sum(heights))
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, part in zip(every, panels, strict=True):
        if part is positive:
            _log_scale(axes, [losses[name][1] for name in part])
        for name in part:
            color, dash = look(names.index(name))
            at, values = averaged(*losses[name])
            axes.plot(at, values, color=color, linestyle=dash, linewidth=1.3, marker="." if len(at) == 1 else None)
        style(axes, "frames" if axes is every[-1] else "", "loss, log scale" if part is positive else "loss")
        axes.margins(x=0)
    entitle(every[0], "Losses", about)
    figure.draw_without_rendering()  # the names' places follow from the layout
    for axes, part in zip(every, panels, strict=True):
        name_beside(axes, {name: (_last(averaged(*losses[name])[1]), look(names.index(name))) for name in part})
    return figure


def draw_shares(rows: Rows, about: str) -> Figure | None:
    """Each row's share of the sum of gradient norms, stacked; nothing of one row, or one point."""
    series = [rows.share(name) for name in rows.names]
    frames = np.unique(np.concatenate([at for at, _ in series]))
    if len(series) < 2 or len(frames) < 2:
        return None
    shares = np.zeros((len(series), len(frames)))  # a row that was not active has no share
    for share, (at, values) in zip(shares, series, strict=True):
        share[np.searchsorted(frames, at)] = np.nan_to_num(values)
    at = averaged(frames, frames)[0]
    bands = np.array([averaged(frames, share)[1] for share in shares])
    labels = [f"{name}  {percent(recent(values))}" for name, (_, values) in zip(rows.names, series, strict=True)]
    looks = [look(index)._replace(dash="-") for index in range(len(series))]
    figure = make_figure(width_for(labels, _WIDTH), height_for(len(series), 4.2))
    axes = figure.subplots()
    axes.stackplot(at, bands, colors=[color for color, _ in looks], edgecolor="white", linewidth=0.5)
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    style(axes, "frames", "share of the sum of gradient norms")
    entitle(axes, f"Gradient shares at {rows.place}", about)
    figure.draw_without_rendering()
    middles = np.cumsum(bands[:, -1]) - bands[:, -1] / 2
    name_beside(axes, {label: (float(y), kind) for label, y, kind in zip(labels, middles, looks, strict=True)})
    return figure


def _log_scale(axes: Axes, series: Sequence[Floats]) -> None:
    """Plain numbers at powers of ten, and where they are few, at twice and five times those."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    values = np.concatenate(series)
    few = np.nanmax(values) < 300 * np.nanmin(values)
    axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}") if few else NullFormatter())


def _last(values: Floats) -> float:
    """The last finite value."""
    return float(values[np.isfinite(values)][-1])
