"""How runs differ: groups of runs that differ in nothing but their seed, and a short label for each group."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from _runs import Run

_IDLE = ("seed", "run_dir", "resume", "dry_run", "trust_config", "threads", "wandb", "checkpoint", "log")
"""Keys of a config that change nothing in what is learned, or are what a group averages over."""

_ABSENT = object()


def group(runs: Sequence[Run], by: Sequence[str] = ()) -> dict[str, list[Run]]:
    """Runs by label.

    Args:
        runs: all of them.
        by: keys of the config, `aggregator` for its label (`upgrad@features`), another config group for the choice of
            its file. Left out, runs belong together if nothing differs but seed, folder, W&B, and what is written when.

    Raises:
        SystemExit: a run lacks one of the keys.
    """
    facts = [_facts(run) for run in runs]
    for key in by:
        for run, known in zip(runs, facts, strict=True):
            if key not in known:
                raise SystemExit(f"{run.folder.config} has no {key}, which is to tell runs apart")
    shown = list(dict.fromkeys(by)) or _telling(facts)
    apart = [tuple(_text(known.get(key, _ABSENT)) for key in shown) for known in facts]
    labels = _labels(facts, shown)
    if len(set(labels)) < len(set(apart)):  # too short to tell them apart
        labels = [" ".join(f"{key}={_text(known[key])}" for key in shown if key in known) for known in facts]
    groups: dict[str, list[Run]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault(label or run.setting("name"), []).append(run)
    return groups


def _facts(run: Run) -> dict[str, Any]:
    """The config by dotted keys, the choice in each config group, and the aggregator's label."""
    chosen = {name: choice for name, choice in run.fact("choices").items() if choice is not None and "/" not in name}
    return {**_flat(run.config), **chosen, "aggregator": run.fact("aggregator")}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _telling(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that differ and that no other one explains: the choice of an objective does so with what its file says."""
    keys = dict.fromkeys(key for known in facts for key in known if key.split(".")[0] not in _IDLE)
    differ = [key for key in keys if len({_text(known.get(key, _ABSENT)) for known in facts}) > 1]
    shown: list[str] = []
    for key in sorted(differ, key=_rank):
        explaining = [other for other in shown if _explains(other, key)]
        if not explaining or not _follows(key, explaining, facts):
            shown.append(key)
    return shown


def _rank(key: str) -> int:
    """Who is asked first: what stands for much comes before what is derived from it."""
    if key in ("experiment", "name"):
        return 0
    return 4 if _is_nested(key) else 3 if "." in key else 1 if key == "aggregator" else 2


def _explains(key: str, other: str) -> bool:
    """Whether a difference in `other` may be a mere consequence of one in `key`."""
    if key in ("experiment", "name"):
        return other != "aggregator"
    return other.startswith(f"{key}.") or (_is_nested(other) and key.split(".")[0] in ("env", "objective", "trunk"))


def _follows(key: str, explaining: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs that agree in all `explaining` keys agree in `key`."""
    values: dict[tuple[str, ...], set[str]] = {}
    for known in facts:
        at = tuple(_text(known.get(other, _ABSENT)) for other in explaining)
        values.setdefault(at, set()).add(_text(known.get(key, _ABSENT)))
    return all(len(found) == 1 for found in values.values())


def _labels(facts: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """`key=value` for each shown key; `heads.*.lr=0.001` where several heads or losses have the same one."""
    families: dict[str, list[str]] = {}
    for key in shown:
        families.setdefault(_family(key), []).append(key)
    words: list[list[str]] = [[] for _ in facts]
    for family, keys in families.items():
        values = [[_text(known[key]) for key in keys if key in known] for known in facts]
        alike = all(len(set(found)) <= 1 for found in values)
        for known, found, label in zip(facts, values, words, strict=True):
            if len(keys) > 1 and found and (alike or len(keys) > 3):
                label.append(f"{family}={','.join(dict.fromkeys(found) if alike else found)}")
            else:
                label += [f"{key}={_text(known[key])}" for key in keys if key in known]
    return [" ".join(label) for label in words]


def _family(key: str) -> str:
    """`heads.*.lr` for `heads.arm.lr`; any other key is alone."""
    root, _, rest = key.partition(".")
    return f"{root}.*.{rest.partition('.')[2]}" if _is_nested(key) else key


def _is_nested(key: str) -> bool:
    return key.startswith(("heads.", "losses."))


def _text(value: object) -> str:
    """A value as one would type it: `true`, `null`, `0.001`, `[64,64]`."""
    if isinstance(value, str):
        return value
    return "" if value is _ABSENT else json.dumps(value, separators=(",", ":"))
