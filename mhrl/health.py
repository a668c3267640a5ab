"""Faults that figures show and returns hide: modules that no longer learn, and rows that drown the others.

A fault is one that lasts: it is said once, when it has been there for `INTERVALS` log rows in a row, and again only
after it has gone. Rows without a figure (nothing was measured, the loss is dropped) neither count nor end a series. A
resumed run counts afresh.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

INTERVALS = 10
"""Log rows in a row: one batch may show anything, ten that lie a log interval apart do not by chance."""

NO_GRADIENT = 1e-8
"""Gradient's norm over that of the parameters: a step of the whole gradient is lost in rounding, 6e-8 in a float32."""

SATURATED = 0.99
"""Part of a head's actions at a bound: the gradient that is left is that of one component in a hundred."""

DOMINATING = 0.99
"""Part of one row in the sum of all rows' norms: the others hardly turn it. 0.96 is common in sound runs of DDPG."""


@dataclass(frozen=True)
class Finding:
    """What one row of metrics says about one thing: `about` it, whether that is `bad`, and what to do about it."""

    about: str
    bad: bool
    figure: str
    advice: str


@final
class Health:
    """Watches the log rows of one run."""

    def __init__(self) -> None:
        self._series: dict[str, tuple[int, int]] = {}  # how often it was bad, and the frames of the first time
        self._updates = 0

    def observe(self, row: Mapping[str, int | float]) -> list[str]:
        """What to warn about after `row`, a log row with its `frames` and `updates`: one message for each fault."""
        if row["updates"] == self._updates:  # the figures are those of the row before
            return []
        self._updates, frames = int(row["updates"]), int(row["frames"])
        messages = []
        for finding in findings(row):
            if not finding.bad:
                self._series.pop(finding.about, None)
                continue
            count, since = self._series.get(finding.about, (0, frames))
            self._series[finding.about] = count + 1, since
            if count + 1 == INTERVALS:
                when = f"at each of {INTERVALS} log intervals, from {since:,} to {frames:,} frames"
                messages.append(f"{finding.about}: {finding.figure} ({when}). {finding.advice}")
        return messages


def findings(row: Mapping[str, float]) -> Iterator[Finding]:
    """All that can be said about the metrics of `row`, good or bad."""
    for module, pull in _named(row, "module/", "/grad_norm").items():
        yield _gradient(module, pull, row[f"module/{module}/param_norm"])
    for head, part in _named(row, "head/", "/saturation").items():
        yield _saturation(head, part)
    yield from _shares(row)


def _named(row: Mapping[str, float], before: str, after: str = "") -> dict[str, float]:
    """The metrics whose names begin and end so, by what is between."""
    return {
        key.removeprefix(before).removesuffix(after): value
        for key, value in row.items()
        if key.startswith(before) and key.endswith(after)
    }


def _gradient(module: str, pull: float, size: float) -> Finding:
    """Whether a module that has a gradient has one to speak of."""
    kind, _, name = module.partition("_")
    key = f"heads.{name}" if name else kind
    figure = f"the gradient of {module} has norm {pull:.1e}, its parameters {size:.2g}"
    advice = (
        f"Lower {key}.lr, or give it another {key}.activation or {key}.layer_norm=true; a head whose loss has nothing "
        "left to teach, or that has one action only, may stay so."
    )
    return Finding(f"dead {kind} {name}".rstrip() + " (no gradient)", pull < NO_GRADIENT * size, figure, advice)


def _saturation(head: str, part: float) -> Finding:
    """Whether a head that proposes has an action that can still move both ways."""
    figure = f"{part:.1%} of its action lies at a bound, where tanh passes next to no gradient"
    advice = (
        "Right, if the best actions are extremes; else it may leave its corner late or never: begin anew with a lower "
        f"heads.{head}.lr."
    )
    return Finding(f"dead head {head} (saturated)", part >= SATURATED, figure, advice)


def _shares(row: Mapping[str, float]) -> Iterator[Finding]:
    """Whether one row is nearly all that the trunk receives, with the weights that the aggregator gives the rows."""
    norms = _named(row, "trunk/params/grad_norm/") or _named(row, "trunk/grad_norm/")
    pulls = {name: abs(row.get(f"trunk/grad_weight/{name}", 1.0)) * norm for name, norm in norms.items()}
    total = sum(pulls.values())
    if len(pulls) < 2 or not total > 0:
        return
    for name, pull in pulls.items():
        figure = f"its gradient is {pull / total:.1%} of what all {len(pulls)} rows bring"
        own = f"loss/{name}" in row
        loss, whose = (f"losses.{name}", "") if own else ("losses.<head>", " of the heads that share the row")
        advice = (
            f"Should the others shape the trunk, too, lower {loss}.trunk_grad (its part in the trunk alone) or "
            f"{loss}.weight{whose}; aggregator=imtl_g gives all rows an equal say, aggregator=upgrad lets none act "
            "against another."
        )
        yield Finding(f"dominating row {name}", pull >= DOMINATING * total, figure, advice)
