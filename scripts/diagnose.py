"""Who drives the trunk, which losses fight, which head is dead: `python scripts/diagnose.py run=<run> [out=<folder>]`.

Prints a table of losses, one of heads and what stands out, and draws return, losses, gradient shares and conflicts, as
PNG and SVG. What a run has not logged is left out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from _drawing import save
from _figures import draw_losses, draw_return, draw_shares
from _findings import findings
from _heat_map import draw_conflicts
from _rows import levels
from _runs import Run
from _tables import head_table, loss_table
from rich.console import Console
from rich.table import Table
from rich.text import Text

USAGE = """python scripts/diagnose.py run=<run folder> [out=<folder>]

  run=  a run folder, also of a run that goes on
  out=  where the figures go (pip install 'mhrl[plot]'); left out, <run folder>/plots"""

LEGEND = """
last, weight: the latest; all else is the mean over the last tenth of what was logged. share: of all rows' gradient \
norms. row weight: what the aggregator gives the row. cos (g, d): of the row's gradient and the direction that the \
trunk receives. range used: how saturated, or which part of the bins is chosen. update: change of the parameters over \
their size, in one update.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Report on the run, then draw it.

    Raises:
        SystemExit: an option is unknown, the run lacks something, or matplotlib is not installed.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & {*arguments}:
        print(USAGE)
        return
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = [name for name in options if name not in ("run", "out")]
    if unknown or not options.get("run"):
        raise SystemExit(f"{f'unknown option {unknown[0]}' if unknown else 'run= is missing'}\n\n{USAGE}")
    run = Run(options["run"])
    console = Console(markup=False, emoji=False, highlight=False)
    report(run, console)
    out = Path(options.get("out") or run.path / "plots")
    names = draw(run, out)
    written = f"Figures, as PNG and SVG, in {out}: {', '.join(names)}" if names else "Nothing to draw yet."
    console.print(Text(f"\n{written}"), soft_wrap=True)


def report(run: Run, console: Console) -> None:
    """Print the tables and what stands out."""
    rows = next(reversed(levels(run)), None)
    console.print(Text(describe(run), style="bold"))
    place = "" if rows is None else f", and the gradient of its row at {rows.place}"
    for what, table in ((f"Each loss{place}", loss_table(run, rows)), ("Each head", head_table(run))):
        console.print(Text(f"\n{what}"))
        console.print(table)
    console.print(Text(LEGEND, style="dim"))
    listed = Table.grid(padding=(0, 1))
    for sentence in findings(run, rows):
        listed.add_row("-", Text(sentence))
    console.print(listed)


def draw(run: Run, out: Path) -> list[str]:
    """Write the figures that there is something for, and return their names."""
    about = describe(run)
    figures = {"return": draw_return(run, about), "losses": draw_losses(run, about)}
    for rows in levels(run):
        figures[f"shares_{rows.level}"] = draw_shares(rows, about)
        figures[f"conflicts_{rows.level}"] = draw_conflicts(rows, about)
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, out / name)
    return list(drawn)


def describe(run: Run) -> str:
    """A run in one line."""
    env = run.setting("env").get("id") or run.setting("env._target_").rsplit(".", 1)[-1]
    frames = f"{run.rows[-1]['frames'] if run.rows else 0:,} frames"
    status = "" if run.fact("status") == "finished" else f" ({run.fact('status')})"
    facts = (run.setting("name"), env, f"seed {run.setting('seed')}", run.fact("aggregator"), frames + status)
    return " · ".join(facts)


if __name__ == "__main__":
    main()
