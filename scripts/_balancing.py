"""What the study of balancing found, as a page and as JSON: nothing but what its finished runs say."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _jobs import RETURN
from _runs import Floats, Run
from _tables import number
from plot import RESAMPLES, interquartile

LAST = 5
"""Evaluations at the end of a run whose mean is its final return."""

PAGE = """# Balancing inside one agent

{runs} of {all_runs} runs. Made by

```text
python scripts/study.py
python scripts/study.py --report
```

The final return of a run is the mean of its last {last} evaluations of {evaluations}. *IQM* is the interquartile mean
over seeds, in brackets its 95 % bootstrap interval over seeds. *Less the sum* is a method's IQM less that of
`{baseline}`, with its interval: **where that contains 0, no difference was found**, and the verdict says so. Intervals
of so few seeds are too narrow, and among many comparisons some find what is not there. `@features` and `@params` are
the levels at which a rule sees the rows' inner products: see [many-losses.md](../many-losses.md).
"""
HEADER = ("method", "seeds", "IQM", "less the sum", "verdict")
NONE, UNKNOWN = "no difference found", ""


class Findings(NamedTuple):
    """What there is of an experiment.

    Attributes:
        experiment: its name.
        frames: of each run.
        finals: `{method: {seed: final return}}` of finished runs.
        weighed: the losses whose weight was tuned.
        weight: which was best; None while runs that judge it are missing.
        means: `{weight: mean final return of the runs that judge it}`.
        versions: `{library: versions that the runs were made with}`.
    """

    experiment: str
    frames: int
    finals: Mapping[str, Mapping[int, float]]
    weighed: Sequence[str]
    weight: float | None
    means: Mapping[float, float]
    versions: Mapping[str, set[str]]


def final_return(run: Run, frames: int) -> float:
    """The mean of the last evaluations up to `frames`."""
    at, returns = run.metric(RETURN)
    return float(np.mean(returns[at <= frames][-LAST:]))


def difference(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """The difference of two interquartile means over seeds `[seeds]`, and its 95 % bootstrap interval.

    The seeds of both are drawn anew, each by themselves; of one seed the interval is NaN.
    """
    from scipy.stats import bootstrap, trim_mean

    def statistic(a: Floats, b: Floats, axis: int) -> Floats:
        return trim_mean(a, 0.25, axis=axis) - trim_mean(b, 0.25, axis=axis)

    value = float(statistic(ours, theirs, 0))
    if min(len(ours), len(theirs)) == 1:
        return value, float("nan"), float("nan")
    options = {"confidence_level": 0.95, "method": "percentile", "n_resamples": RESAMPLES, "vectorized": True}
    interval = bootstrap((ours, theirs), statistic, rng=np.random.default_rng(0), **options).confidence_interval
    return value, float(interval.low), float(interval.high)


def final_of(run: Run, frames: int, method: str, baseline: str) -> float:
    """`final_return` of a run of a method.

    Raises:
        SystemExit: it was not made by that method.
    """
    label = run.fact("aggregator")
    if label != (method if "@" in method else baseline):
        raise SystemExit(f"{run.path} is a run of {label}, not of {method}")
    return final_return(run, frames)


def summarise(finals: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, dict[str, Any]]:
    """The figures of every method that has a finished run."""
    figures: dict[str, dict[str, Any]] = {}
    for method, of_seed in finals.items():
        if not of_seed:
            continue
        values = np.array(list(of_seed.values()))
        iqm, low, high = (float(bound[0]) for bound in interquartile(values[:, None]))
        figures[method] = {"iqm": iqm, "interval": [low, high], "final_return": dict(sorted(of_seed.items()))}
        if method != baseline and finals.get(baseline):
            less, *interval = difference(values, np.array(list(finals[baseline].values())))
            figures[method] |= {"difference": less, "difference_interval": interval}
    return figures


def verdict(figures: Mapping[str, Any]) -> str:
    """What the interval of the difference says."""
    low, high = figures.get("difference_interval", (np.nan, np.nan))
    if np.isnan(low):
        return UNKNOWN
    return "higher" if low > 0 else "lower" if high < 0 else NONE


def report(all_found: Sequence[Findings], baseline: str, seeds: int, evaluations: int, to: Path) -> list[Path]:
    """Write `balancing.md` and `balancing.json`.

    Args:
        all_found: of each experiment.
        baseline: the method that the others are compared with.
        seeds: how many each method is to have.
        evaluations: of each run.
        to: the folder.

    Raises:
        SystemExit: no run is finished.
    """
    figures = {found.experiment: summarise(found.finals, baseline) for found in all_found}
    count = sum(len(method["final_return"]) for methods in figures.values() for method in methods.values())
    if not count:
        raise SystemExit("no run is finished: there is nothing to report")
    page = PAGE.format(
        runs=count,
        all_runs=seeds * sum(len(found.finals) for found in all_found),
        last=LAST,
        evaluations=evaluations,
        baseline=baseline,
    )
    content: dict[str, Any] = {}
    for found in all_found:
        methods = figures[found.experiment]
        page += (
            f"\n## `{found.experiment}`, {found.frames:,} frames\n\n{_table(found.finals, methods)}\n{_tuning(found)}"
        )
        content[found.experiment] = {
            "frames": found.frames,
            "methods": methods,
            "tuning": {"losses": [*found.weighed], "weight": found.weight, "mean_return": dict(found.means)},
            "versions": {package: ", ".join(sorted(versions)) for package, versions in found.versions.items()},
        }
    to.mkdir(parents=True, exist_ok=True)
    files = [to / "balancing.md", to / "balancing.json"]
    files[0].write_text(page, encoding="utf-8")
    files[1].write_text(json.dumps(_finite(content), indent=1) + "\n", encoding="utf-8")
    return files


def _table(methods: Sequence[str] | Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each method, those without a finished run included."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for method in methods:
        if (found := figures.get(method)) is None:
            lines.append((f"`{method}`", "0", "", "", "not run"))
            continue
        less = _with_interval(found["difference"], found["difference_interval"]) if "difference" in found else ""
        iqm = _with_interval(found["iqm"], found["interval"])
        lines.append((f"`{method}`", str(len(found["final_return"])), iqm, less, verdict(found)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _tuning(found: Findings) -> str:
    """How the weight of `tuned_weights` was found."""
    names = ", ".join(f"`{loss}`" for loss in found.weighed)
    tried = ", ".join(f"{weight:g} ({number(mean, 4)})" for weight, mean in found.means.items()) or "none yet"
    best = "not chosen yet" if found.weight is None else f"{found.weight:g}"
    same = ", so that its runs are those of the plain sum" if found.weight == 1 else ""
    return f"Tuned weight of {names}: {best}{same}. Tried on other seeds, with their mean final return: {tried}.\n"


def _with_interval(value: float, interval: Sequence[float]) -> str:
    if np.isnan(interval[0]):
        return number(value, 4)
    return f"{number(value, 4)} [{number(interval[0], 4)}, {number(interval[1], 4)}]"


def _finite(node: Any) -> Any:  # noqa: ANN401
    """The same with null for NaN, which JSON has not, and floats rounded to 6 decimals."""
    if isinstance(node, Mapping):
        return {str(key): _finite(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_finite(value) for value in node]
    if isinstance(node, float):
        return round(node, 6) if np.isfinite(node) else None
    return node
