"""A W&B view for a run's heads, as code: `python scripts/dashboard.py [--dry-run] [run=outputs/last] [entity=...]`.

A section for the run as a whole, one for each head, one for how the losses conflict, one for health. A panel is there
if the run logs one of its metrics. Needs `pip install 'mhrl[dashboard]'`.
"""

import argparse
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

import wandb
from _panels import ALWAYS, Panel, sections
from _runs import Run

from mhrl.loggers import has_key

try:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
except ImportError as error:
    raise SystemExit(f"wandb-workspaces cannot be imported: pip install 'mhrl[dashboard]' ({error})") from error

OPTIONS = {
    "run": "a run folder; outputs/last, if left out",
    "entity": "user or team; that of the run's config, if left out",
    "project": "that of the run's config, if left out",
}


def metrics(run: Run) -> list[str]:
    """The metrics that a run logs, in the order of their first occurrence.

    Raises:
        SystemExit: if no update is logged yet, so that they are not known.
    """
    if not any(row.get("updates") for row in run.rows):
        raise SystemExit(f"{run.folder.metrics}: no update is logged yet, so the run's metrics are not known")
    return list(dict.fromkeys([*(key for row in run.rows for key in row), *ALWAYS]))


def workspace(config: Mapping[str, Any], logged: Collection[str], entity: str, project: str) -> ws.Workspace:
    """The view, not saved yet."""
    drawn = {name: [_plot(panel) for panel in panels] for name, panels in sections(config, logged).items()}
    if config["eval"]["video"]:
        drawn["Overview"].append(wr.MediaBrowser(title="video", media_keys=["eval/video"]))
    name = re.sub(r"[^\w .,:()-]", "-", config["name"])  # W&B refuses symbols
    settings = ws.SectionPanelSettings(x_axis="frames")
    for section, plots in drawn.items():
        for plot in plots:
            plot._id = sha256(f"{section}/{plot.title}".encode()).hexdigest()[:12]  # the library's is random
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"Heads of {name}",
        sections=[
            ws.Section(
                name=section,
                panels=plots,
                is_open=section == "Overview",
                layout_settings=ws.SectionLayoutSettings(columns=3, rows=-(-len(plots) // 3)),  # all on one page
                panel_settings=settings,
            )
            for section, plots in drawn.items()
        ],
        settings=ws.WorkspaceSettings(x_axis="frames"),
    )


def _plot(panel: Panel) -> wr.LinePlot:
    grouping = {"groupby": "Group", "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"} if panel.grouped else {}
    return wr.LinePlot(title=panel.title, x="frames", y=list(panel.metrics), **grouping)


def specification(view: ws.Workspace) -> str:
    """What W&B would be sent, as JSON."""
    fields = view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(fields, indent=1)


def save(view: ws.Workspace) -> None:
    """Save `view` as a new one.

    Raises:
        SystemExit: without a key, which is looked for without a prompt; or if W&B refuses or does not answer.
    """
    try:
        if not has_key():
            raise SystemExit("W&B: no API key found; `wandb login` adds one, --dry-run needs none")
        view.entity = view.entity or wandb.Api(timeout=20).default_entity
        view.save()
    except Exception as error:
        raise SystemExit(f"W&B did not take the view: {str(error).partition(chr(10))[0]}") from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the view, or print it as JSON."""
    parser = argparse.ArgumentParser(description="A W&B view for a run's heads.")
    parser.add_argument("--dry-run", action="store_true", help="print the view as JSON; no login, no network")
    listed = ", ".join(f"{name}= ({text})" for name, text in OPTIONS.items())
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help=listed)
    given = parser.parse_args(arguments)
    chosen = dict(word.partition("=")[::2] for word in given.options)
    if unknown := [name for name in chosen if name not in OPTIONS]:
        parser.error(f"unknown option {unknown[0]}; options are {', '.join(f'{name}=' for name in OPTIONS)}")
    run = Run(chosen.get("run", "outputs/last"))
    entity, project = (chosen.get(name, run.setting(f"wandb.{name}")) for name in ("entity", "project"))
    view = workspace(run.config, metrics(run), entity or "", project)
    if given.dry_run:
        print(specification(view))
    else:
        save(view)


if __name__ == "__main__":
    main(sys.argv[1:])
