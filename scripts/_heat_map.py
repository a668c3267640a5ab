"""The figure of conflicts: a cell for each pair of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from _drawing import GREY, INK, entitle, make_figure
from _rows import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW, _SOME = 4, 8  # rows up to which cells and letters are large, and middling


def draw_conflicts(rows: Rows, about: str) -> Figure | None:
    """The mean cosine of each pair of rows over the run; nothing where no pair was logged."""
    if not rows.cosines:
        return None
    names, count = rows.names, len(rows.names)
    cell, letters = (0.9, 10) if count <= _FEW else (0.6, 9) if count <= _SOME else (0.42, 7)
    means = np.full((count, count), np.nan)
    for (a, b), values in rows.cosines.items():
        if (finite := values[np.isfinite(values)]).size:
            i, j = names.index(a), names.index(b)
            means[i, j] = means[j, i] = finite.mean()
    most = min(1.0, np.nanmax(np.abs(means), initial=0.0))
    limit = next(limit for limit in (0.5, 1.0) if most <= limit)
    side, room = cell * count, 0.08 * max(map(len, names))
    figure = make_figure(max(side + 1.4, 0.065 * len(about)) + room, side + room + 1.0)
    axes = figure.subplots()
    axes.set_facecolor("#e6e6e6")
    image = axes.imshow(means, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for i, j in np.argwhere(np.isfinite(means)):
        color = "white" if abs(means[i, j]) > 0.65 * limit else "black"
        axes.text(j, i, _cosine(means[i, j]), ha="center", va="center", color=color, size=letters)
    upright = count > _SOME
    turned = {"rotation": 90} if upright else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(count), names, **turned)
    axes.set_yticks(range(count), names)
    axes.tick_params(colors=INK, labelsize=8 if upright else 9, length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(count + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(count + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)
    bar = figure.colorbar(image, ax=axes, ticks=np.linspace(-limit, limit, 5), fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label("mean cosine; below 0 is conflict", fontsize=8, color=GREY)
    bar.ax.tick_params(labelsize=8, colors=INK)
    entitle(axes, f"Conflicts at {rows.place}", about)
    return figure


def _cosine(value: float) -> str:
    """Two decimals in little room: `-.12`."""
    text = f"{value:+.2f}"
    return "0" if float(text) == 0 else text.replace("0.", ".")
