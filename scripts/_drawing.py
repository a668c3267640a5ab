"""What all figures share: colours that stay apart, names beside their lines, PNG and SVG. Imports matplotlib late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from _runs import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, FAINT = "#333333", "#777777", "#bbbbbb"
_HUES = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#b0478c")  # after Okabe and Ito: not red against green
_DASHES = ("-", "--", ":", "-.")
_TONES = (0.0, 0.4, -0.4, 0.7)  # towards white, or, if negative, black
_LINE = 0.17  # inches that one name needs


class Look(NamedTuple):
    """How one of several lines or areas is drawn."""

    color: tuple[float, float, float]
    dash: str


def look(index: int) -> Look:
    """The look of line number `index`: six hues, then the same lighter and dashed, darker and dotted, ...

    The first 24 differ; they stay apart in grey and for the colour-blind by their dashes.
    """
    block = index // len(_HUES) % len(_TONES)
    hue = np.array([int(_HUES[index % len(_HUES)][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    tone = _TONES[block]
    red, green, blue = hue + (1 - hue) * tone if tone >= 0 else hue * (1 + tone)
    return Look((float(red), float(green), float(blue)), _DASHES[block])


def make_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, drawn without a display.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SystemExit("plots need matplotlib: pip install 'mhrl[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")  # without pyplot: no window, no backend


def style(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Axes as all figures have them: faint grid, no box, `1k` for a thousand frames."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=INK, labelsize=9)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def entitle(axes: Axes, what: str, about: str) -> None:
    """A title and, in small letters below it, what it is about."""
    axes.set_title(what, loc="left", fontsize=12, color=INK, pad=18)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    below = axes.annotate(about, (0, 1), (0, 5), fontsize=8, color=GREY, **place)
    below.set_in_layout(False)  # however long it is, it moves nothing


def height_for(names: int, least: float) -> float:
    """Inches of height in which that many names stand beside the axes."""
    return max(least, 1.2 + _LINE * names)


def width_for(names: Iterable[str], axes: float) -> float:
    """Inches of width in which the names stand beside axes of that width."""
    return axes + 0.75 + 0.07 * max(map(len, names))


def name_beside(axes: Axes, ends: Mapping[str, tuple[float, Look]]) -> None:
    """Write names right of the axes, each beside the end of its line; none covers another.

    Args:
        axes: whose limits are final, in a figure that has been laid out.
        ends: `{name: (y where its line ends, look)}`.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    x = axes.get_xlim()[1]
    wanted = {name: float(to_axes.transform((x, y))[1]) for name, (y, _) in ends.items()}
    names = sorted(wanted, key=wanted.__getitem__)
    for name, at in zip(names, spread([wanted[name] for name in names], _LINE / _inches(axes)), strict=True):
        color, dash = ends[name][1]
        outside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": color}
        axes.plot([1.005, 1.03], [wanted[name], at], linewidth=0.7, **outside)
        axes.plot([1.03, 1.065], [at, at], linestyle=dash, linewidth=2, solid_capstyle="butt", **outside)
        axes.text(1.072, at, name, transform=axes.transAxes, fontsize=8, va="center", color=INK)


def _inches(axes: Axes) -> float:
    """The height of the axes."""
    low, high = axes.transAxes.transform([(0, 0), (0, 1)])[:, 1]
    return float(high - low) / axes.get_figure(root=True).dpi  # type: ignore[union-attr]


def spread(wanted: Sequence[float], gap: float) -> Floats:
    """Ascending positions in [0, 1], `gap` or more apart, near the ascending `wanted` ones in the least squares.

    If there is no room for all of them in [0, 1], they are evenly spaced there.
    """
    count = len(wanted)
    gap = min(gap, 1 / max(1, count - 1))
    steps = gap * np.arange(count)
    blocks: list[list[float]] = []  # pool adjacent violators: after a shift by `steps` only the order has to hold
    for value in np.asarray(wanted) - steps:
        blocks.append([float(value)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    free = np.array([np.mean(block) for block in blocks for _ in block])
    return np.clip(free, 0, max(0.0, 1 - gap * (count - 1))) + steps


def averaged(frames: Floats, values: Floats, points: int = 80) -> tuple[Floats, Floats]:
    """A long series in at most `points` points, each the mean over as many neighbours; NaN where all of them are."""
    size = max(1, -(-len(frames) // points))
    parts = [(frames[i : i + size], values[i : i + size]) for i in range(0, len(frames), size)]
    finite = [(at.mean(), part[np.isfinite(part)]) for at, part in parts]
    return np.array([at for at, _ in finite]), np.array([part.mean() if len(part) else np.nan for _, part in finite])


def percent(share: float) -> str:
    """`44%`; `<1%` and `>99%` where rounding would say none or all; nothing for NaN."""
    if not np.isfinite(share):
        return ""
    rounded = round(100 * share)
    if rounded == 0 and share > 0:
        return "<1%"
    return ">99%" if rounded == 100 and share < 1 else f"{rounded}%"


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `<path>.png` and `<path>.svg`; the same figure gives the same bytes.

    Raises:
        SystemExit: they cannot be written.
    """
    from matplotlib import rc_context

    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "mhrl"}):
            figure.savefig(files[0], dpi=150)
            figure.savefig(files[1], metadata={"Date": None})
    except OSError as error:
        raise SystemExit(f"the figure cannot be written: {error}") from error
    return files
