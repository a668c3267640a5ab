"""Which plots a run's heads call for: sections and panels by metric, whoever draws them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

ALWAYS = (
    *("eval/return_mean", "eval/return_std", "eval/length_mean", "episode/return", "episode/length"),
    *("perf/frames_per_s", "perf/updates_per_s"),
)
"""Metrics that every run logs sooner or later."""

LEVELS = {"trunk": "", "trunk/params": ", at the parameters"}
"""Where the rows' gradients are measured, and how titles say so."""


class Panel(NamedTuple):
    """A plot of metrics over `frames`; `grouped` draws the mean and the range of each group of runs."""

    title: str
    metrics: Sequence[str]
    grouped: bool = False


def sections(config: Mapping[str, Any], logged: Collection[str]) -> dict[str, list[Panel]]:
    """The sections by name; panels have metrics that are `logged` only, none is there twice, none is empty."""
    heads = dict.fromkeys([*config["heads"], *config["losses"]])  # a joint loss of all branches has no head
    drawn: dict[str, Iterator[Panel]] = {"Overview": overview()}
    drawn |= {f"Head {name}" if name in config["heads"] else f"Loss {name}": head(name, logged) for name in heads}
    drawn |= {"Conflict": conflict(logged), "Health": health(logged)}
    found: dict[str, list[Panel]] = {}
    for section, panels in drawn.items():
        unique: dict[tuple[frozenset[str], bool], Panel] = {}
        for panel in panels:
            metrics = [metric for metric in panel.metrics if metric in logged]
            if metrics:
                unique.setdefault((frozenset(metrics), panel.grouped), panel._replace(metrics=metrics))
        found |= {section: [*unique.values()]} if unique else {}
    return found


def overview() -> Iterator[Panel]:
    """How good the agent is, and how fast."""
    yield Panel("evaluation return, by seed", ["eval/return_mean"])
    yield Panel("evaluation return, mean and range over seeds", ["eval/return_mean"], grouped=True)
    yield Panel("return of training episodes", ["episode/return"])
    yield Panel("episode length", ["episode/length", "eval/length_mean"])
    yield Panel("frames per second", ["perf/frames_per_s"])


def head(name: str, logged: Collection[str]) -> Iterator[Panel]:
    """One head: its loss, its pull on the trunk, what it decides or how it judges, how fast it changes."""
    shares = f"trunk/grad_norm/{name}" not in logged and f"head/{name}/action_gradient" in logged
    row, of = ("actor", " of the row actor") if shares else (name, "")
    yield Panel("loss", [f"loss/{name}"])
    yield Panel("weight of the loss", [f"loss_weight/{name}"])
    for level, where in LEVELS.items():
        yield Panel(f"gradient norm{of}{where}", [f"{level}/grad_norm/{row}"])
        yield Panel(f"gradient share{of}{where}", [f"{level}/grad_share/{row}"])
    yield Panel("value", [f"head/{name}/{metric}" for metric in ("pred_value", "pred_value_max", "target_value")])
    yield Panel("distance to the target", [f"head/{name}/target_gap"])
    yield Panel("saturation", [f"head/{name}/saturation"])
    yield Panel("bin usage", [f"head/{name}/bin_usage"])
    yield Panel("gradient of the value by the action", [f"head/{name}/action_gradient"])
    modules = (f"module/head_{name}", f"module/twin_{name}")
    yield Panel("update ratio", [f"{module}/update_ratio" for module in modules])


def conflict(logged: Collection[str]) -> Iterator[Panel]:
    """How the rows meet at the trunk, at each level where they are measured."""
    for level, where in LEVELS.items():
        rows = [key.removeprefix(f"{level}/grad_norm/") for key in logged if key.startswith(f"{level}/grad_norm/")]
        yield Panel(f"fraction of pairs in conflict{where}", [f"{level}/conflict_fraction"])
        yield Panel(f"norm of the combined gradient{where}", [f"{level}/combined_norm"])
        yield Panel(f"gradient norms{where}", [f"{level}/grad_norm/{row}" for row in rows])
        yield Panel(f"gradient shares{where}", [f"{level}/grad_share/{row}" for row in rows])
        yield Panel(f"weights of the rows{where}", [f"{level}/grad_weight/{row}" for row in rows])
        yield Panel(f"inner products with the combined gradient{where}", [f"{level}/grad_dot/{row}" for row in rows])
        for row in rows:
            pairs = [f"{level}/grad_cos/{a}__{b}" for a, b in permutations(rows, 2) if row in (a, b)]
            yield Panel(f"cosines of {row}{where}", pairs)
    yield Panel("agreement of the levels on the cosines' signs", ["trunk/sign_agreement"])


def health(logged: Collection[str]) -> Iterator[Panel]:
    """Whether the numbers are sound."""
    modules = [key for key in logged if key.startswith("module/")]
    yield Panel("norm of the whole gradient", ["grad/norm"])
    yield Panel("gradient norms of the modules", [key for key in modules if key.endswith("/grad_norm")])
    yield Panel("norms of the modules' parameters", [key for key in modules if key.endswith("/param_norm")])
    yield Panel("update ratios of the modules", [key for key in modules if key.endswith("/update_ratio")])
    yield Panel("skipped updates and rows", ["skipped_updates", "skipped_rows"])
    yield Panel("frames and updates per second", ["perf/frames_per_s", "perf/updates_per_s"])
