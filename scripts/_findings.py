"""What a run's figures mean, in a few sentences."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from _drawing import percent
from _rows import Rows, recent
from _runs import Floats, Run

from mhrl.health import INTERVALS, Finding
from mhrl.health import findings as judge

ORTHOGONAL = 0.05
"""Two rows whose mean cosine is smaller hardly touch each other, however often its sign is negative."""

_PAIRS = 5  # that are listed


class Pair(NamedTuple):
    """How two rows get on: the share of intervals in which their cosine is negative, and its mean."""

    a: str
    b: str
    conflicts: float
    cosine: float


def findings(run: Run, rows: Rows | None) -> Iterator[str]:
    """What stands out.

    Args:
        run: a run.
        rows: those of the level where the aggregator works; None if nothing was measured.
    """
    yield _level(run, rows)
    if rows is not None and len(rows.names) == 1:
        yield f"One row, {rows.names[0]}, trains the trunk: nothing shares it, nothing conflicts."
    elif rows is not None:
        yield _most_and_least(rows)
        yield from _conflicts(rows)
        agreement = _mean(run.metric("trunk/sign_agreement")[1])
        if np.isfinite(agreement):
            yield f"At both levels, features and parameters, {percent(agreement)} of the pairs have the same sign."
    judged = _judged(run)
    faults = [found for found in judged if all(finding.bad for finding in found)]
    for found in faults:
        when = f"each of the last {len(found)} log intervals" if len(found) > 1 else "the only log interval"
        yield f"{found[-1].about}: {found[-1].figure} (in {when}). {found[-1].advice}"
    if judged and not faults:
        yield "No head is dead, and no row dominates."


def pairs(rows: Rows) -> list[Pair]:
    """All pairs whose cosine was logged, those that conflict most often first."""
    found = [
        Pair(a, b, float((values < 0).mean()), float(values.mean()))
        for (a, b), cosines in rows.cosines.items()
        if len(values := cosines[np.isfinite(cosines)])
    ]
    return sorted(found, key=lambda pair: (-pair.conflicts, pair.cosine))


def _level(run: Run, rows: Rows | None) -> str:
    if rows is not None:
        return f"Aggregator {run.fact('aggregator')}; gradients, shares and conflicts are those at {rows.place}."
    if not run.names("loss/"):
        return "No update has been logged yet."
    trunk = run.setting("trunk._target_").rsplit(".", 1)[-1]
    return (
        f"No gradient was measured at a trunk ({trunk}): the losses share none, so nothing is shared out or conflicts."
    )


def _most_and_least(rows: Rows) -> str:
    shares = sorted((recent(rows.share(row)[1]), row) for row in rows.names)
    (least, last), (most, first) = shares[0], shares[-1]
    return f"Of the sum of gradient norms {first} has most, {percent(most)}, and {last} least, {percent(least)}."


def _conflicts(rows: Rows) -> Iterator[str]:
    known = pairs(rows)
    often = [pair for pair in known if pair.conflicts > 0]
    for pair in often[:_PAIRS]:
        near = ", nearly orthogonal" if abs(pair.cosine) < ORTHOGONAL else ""
        how = f"{percent(pair.conflicts)} of the intervals (mean cosine {pair.cosine:.2f}{near})"
        yield f"{pair.a} and {pair.b} conflict in {how}."
    fraction = percent(_mean(rows.metric("conflict_fraction")[1]))
    if not known:
        yield f"Of {len(rows.names)} rows single pairs are not logged; {fraction} of the pairs conflict on average."
    elif not often:
        yield "No pair of rows ever conflicts: each cosine is 0 or more."
    elif len(often) > _PAIRS:
        yield f"{len(often) - _PAIRS} other pairs conflict, less often; on average {fraction} of all pairs do."


def _judged(run: Run) -> list[list[Finding]]:
    """What the run's own warnings are made from, by what it is about: the newest, as many as a warning takes."""
    series: dict[str, list[Finding]] = {}
    updates = 0
    for row in run.rows:
        if row.get("updates", 0) == updates:  # the figures are those of the row before
            continue
        updates = row["updates"]
        try:
            for finding in judge({key: value for key, value in row.items() if value is not None}):
                series.setdefault(finding.about, []).append(finding)
        except KeyError as error:
            raise SystemExit(f"{run.folder.metrics} has no {error.args[0]} at {row['frames']} frames") from error
    return [found[-INTERVALS:] for found in series.values()]


def _mean(values: Floats) -> float:
    """Over what is finite; NaN of nothing."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
