"""Tables of a run: what each loss does to the trunk, and how each head fares."""

from collections.abc import Mapping, Sequence

import numpy as np
from _drawing import percent
from _rows import Rows, recent
from _runs import Run
from rich.box import SIMPLE_HEAD
from rich.table import Table

_NAMES = ("loss", "row", "head")

ACTOR = "actor"
"""The row that losses of heads which propose share, unless each has its own."""


def loss_table(run: Run, rows: Rows | None) -> Table:
    """A line for each loss: its value, and its row's gradient at the trunk (of a shared row at its first loss only).

    Args:
        run: a run.
        rows: those of the level that is shown; None if nothing was measured.
    """
    seen: set[str] = set()
    lines = []
    for loss in dict.fromkeys([*run.setting("losses"), *run.names("loss/")]):
        values, weights = run.metric(f"loss/{loss}")[1], run.metric(f"loss_weight/{loss}")[1]
        line = {
            "loss": loss,
            "last": number(values[-1]) if len(values) else "",
            "mean": number(recent(values)),
            "weight": number(weights[-1]) if len(weights) else "",
        }
        row = None if rows is None else row_of(loss, run, rows)
        if rows is not None and row is not None:
            line["row"] = row if row != loss else ""
            if row not in seen:
                line["gradient"] = number(recent(rows.norm(row)[1]))
                line["share"] = percent(recent(rows.share(row)[1]))
                line["row\nweight"] = _recent(run, f"trunk/grad_weight/{row}")
                line["cos\n(g, d)"] = number(recent(rows.alignment(row)))
            seen.add(row)
        lines.append(line)
    return _table(lines)


def head_table(run: Run) -> Table:
    """A line for each head: how it acts, what it predicts, how fast it moves; and one for every other module."""
    heads = run.setting("heads")
    others = [module for module in run.names("module/") if not module.startswith("head_")]
    lines = []
    for name in [*heads, *others]:
        saturation, bins = (_recent(run, f"head/{name}/{figure}", 2) for figure in ("saturation", "bin_usage"))
        lines.append(
            {
                "head": name,
                "kind": str(heads[name]["kind"]) if name in heads else "",
                "range\nused": f"sat. {saturation}" if saturation else f"bins {bins}" if bins else "",
                "|dQ/da|": _recent(run, f"head/{name}/action_gradient"),
                "mean\nQ": _recent(run, f"head/{name}/pred_value"),
                "target\ngap": _recent(run, f"head/{name}/target_gap"),
                "update": _recent(run, f"module/{f'head_{name}' if name in heads else name}/update_ratio", 2),
            }
        )
    return _table(lines)


def _recent(run: Run, key: str, digits: int = 3) -> str:
    return number(recent(run.metric(key)[1]), digits)


def row_of(loss: str, run: Run, rows: Rows) -> str | None:
    """The row through which a loss reads the features: its own, the one that heads which propose share, or none."""
    if loss in rows.names:
        return loss
    proposes = len(run.metric(f"head/{loss}/action_gradient")[1]) > 0
    return ACTOR if proposes and ACTOR in rows.names else None


def number(value: float, digits: int = 3) -> str:
    """Some significant digits, no power of ten where it reads better; nothing for NaN."""
    if not np.isfinite(value):
        return ""
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def _table(lines: Sequence[Mapping[str, str]]) -> Table:
    """The lines, without columns that are empty throughout. Names may take several lines, numbers are never cut."""
    filled = {title for line in lines for title, cell in line.items() if cell}
    titles = [title for title in dict.fromkeys(title for line in lines for title in line) if title in filled]
    table = Table(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1))
    for title in titles:
        if title in _NAMES:
            table.add_column(title, overflow="fold", min_width=8)
        else:
            table.add_column(title, justify="left" if title == "kind" else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line.get(title, "") for title in titles))
    return table
