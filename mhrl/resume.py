"""From `resume=<run dir or checkpoint> [k=v]` to the config and the state that a run goes on with."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from mhrl.checkpoint import CheckpointError, load_checkpoint, targets
from mhrl.checkpoint_folder import CheckpointFolder
from mhrl.config import ConfigError, check_config, group_choice
from mhrl.run_folder import RunFolder

FIXED = (
    *("seed", "num_envs", "env", "replay", "learning_starts", "utd_ratio"),
    *("objective.n_steps", "objective.bins", "objective.dueling", "objective.twin", "objective.loss_reduction"),
    *("run_dir", "dry_run", "name"),
)
"""Keys that a run keeps for life: its envs, its rows in replay, the updates it owes and its folder hang on them."""

SWITCHED = "aggregator"
"""The group of which a resumed run may choose another file: nothing else depends on its state."""

GROUPS = ("env", "trunk", "objective", "aggregator", "optimizer", "replay", "exploration", "normaliser", "experiment")


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on.

    Attributes:
        folder: the run's folder.
        file: the checkpoint.
        state: its content.
        config: its config, under the command line's values.
        notes: files that could not be read, and what the command line changed, a sentence each.
        choices: the files that the command line chose from config groups.
        fresh: entries of the checkpoint that are not taken over: what they are the state of is another thing now.
    """

    folder: RunFolder
    file: Path
    state: Mapping[str, Any]
    config: dict[str, Any]
    notes: tuple[str, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()


def resume(path: str, overrides: Sequence[str], *, trust_config: bool = False) -> Resumption:
    """Read a checkpoint and put the command line's values over its config.

    Args:
        path: a run folder (its newest checkpoint that can be read) or a checkpoint file (that one or none).
        overrides: the command line, as Hydra was given it.
        trust_config: allow `_target_`s from outside mhrl and its libraries.

    The run's folder is locked from here on: see `RunFolder.lock`.

    Raises:
        ConfigError: if there is nothing to resume, an override cannot be had on resume, or the config that results is
            not valid; names it.
    """
    try:
        folder, file, state, torn = read_run(path, trust_config=trust_config, lock=True)
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"resume={path}: {error}") from error
    try:
        return _prepare(folder, file, state, torn, overrides)
    except BaseException:
        folder.unlock()
        raise


def read_run(
    path: str | Path, *, trust_config: bool = False, lock: bool = False
) -> tuple[RunFolder, Path, dict[str, Any], tuple[str, ...]]:
    """A run's folder, a checkpoint, its content, and what is wrong with the newer ones.

    Args:
        path: a run folder (its newest checkpoint that can be read) or a checkpoint file (that one or none).
        trust_config: allow `_target_`s from outside mhrl and its libraries.
        lock: take the folder before reading: whoever still writes there may write a newer one.

    Raises:
        FileNotFoundError: if `path` is neither.
        FileExistsError: if another process has the folder.
        CheckpointError: if there is no checkpoint that can be read, or it is not trusted.
    """
    folder, file = RunFolder.open(path), Path(path).resolve()
    if lock:
        folder.lock()
    try:
        if file.is_file():
            return folder, file, load_checkpoint(file, trust_config=trust_config), ()
        return folder, *CheckpointFolder(folder.checkpoints).newest(trust_config=trust_config)
    except BaseException:
        folder.unlock()
        raise


def _prepare(
    folder: RunFolder, file: Path, state: Mapping[str, Any], torn: Iterable[str], overrides: Sequence[str]
) -> Resumption:
    """The resumption of a checkpoint, if it can be resumed with `overrides`."""
    missing = [key for key in ("replay", "env", "rng") if key not in state]
    if missing:
        hint = f"; best.pt is for evaluating, resume {folder.checkpoints / 'last.pt'}" if file.name == "best.pt" else ""
        raise ConfigError(f"{file} has no entry {missing[0]!r}: it cannot be resumed{hint}")
    config, conflicts = merge(state["config"], overrides)
    config = check_config(config)
    fresh = () if _built_from(config[SWITCHED]) == _built_from(state["config"][SWITCHED]) else (SWITCHED,)
    frames = state["counters"]["frames"]
    if config["total_frames"] <= frames:
        raise ConfigError(
            f"total_frames is {config['total_frames']} and the checkpoint {file.name} is at {frames} frames: "
            f"there is nothing left to do; to go on, add total_frames={2 * frames}"
        )
    choices = {one.key_or_group: one.value() for one in _parsed(overrides) if _switches(one)}
    return Resumption(folder, file, state, config, (*torn, *conflicts), choices, fresh)


def merge(config: Mapping[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A checkpoint's config under the command line's values, and what these changed.

    Raises:
        ConfigError: for a group, a deletion, or another value of a key that a run keeps for life.
    """
    merged = OmegaConf.create(deepcopy(dict(config)))
    conflicts, switched = [], False
    for override in sorted(_parsed(overrides), key=_switches, reverse=True):  # single values go over a chosen file
        key, given = override.key_or_group, override.input_line
        if key in ("resume", "trust_config"):
            continue
        if _switches(override):
            switched, merged[key] = True, group_choice(key, override.value())
            continue
        if key in GROUPS or override.package is not None or "@" in key or "/" in key:
            raise ConfigError(f"{given}: a resumed run keeps its {key}; leave it out, and set single values only")
        if override.is_delete():
            raise ConfigError(f"{given}: nothing can be deleted from the config of a resumed run")
        for place in _places(key, config, given):
            before = deepcopy(OmegaConf.select(merged, place))
            OmegaConf.update(merged, place, override.value(), force_add=True)
            after = OmegaConf.select(merged, place)
            if before == after:
                continue
            if _is_fixed(place):
                words = f"{given}: a resumed run keeps {place}, which is {before}"
                raise ConfigError(f"{words}; start a new run to change it")
            if not (switched and place.startswith(f"{SWITCHED}.")):
                conflicts.append(_conflict(place, before, after))
    plain = OmegaConf.to_container(merged, resolve=True)
    if switched:
        conflicts += _differences(config[SWITCHED], plain[SWITCHED])
    return plain, tuple(conflicts)


def _parsed(overrides: Iterable[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def _switches(override: Override) -> bool:
    """Whether an override chooses a file that may be chosen on resume."""
    plain = override.package is None and not override.is_delete() and not override.is_add()
    return override.key_or_group == SWITCHED and plain and isinstance(override.value(), str)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What another file of the group changes: all, or some fields."""
    old, new = _built_from(before), _built_from(after)
    if old != new:
        return [f"{_conflict(SWITCHED, old, new)}, with a fresh state"]
    keys = dict.fromkeys((*before, *after))
    return [
        _conflict(f"{SWITCHED}.{key}", before.get(key), after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _built_from(node: Mapping[str, Any]) -> str:
    """The classes that a node of the config names, its own and those of its arguments: whose state it has."""
    return " with ".join(target for _, target in targets(node))


def _conflict(key: str, before: Any, after: Any) -> str:  # noqa: ANN401
    return f"{key} is {before} in the checkpoint, {after} on the command line, which wins"


def _places(key: str, config: Mapping[str, Any], given: str) -> list[str]:
    """The keys of a run's config that `key` means: a leaf's name stands for all heads and losses of that leaf.

    Raises:
        ConfigError: for a head or loss that the run does not have, naming those that there are.
    """
    group, _, rest = key.partition(".")
    name, _, field = rest.partition(".")
    if group not in ("heads", "losses") or not name or name in config[group]:
        return [key]
    heads = [head for head, fields in config["heads"].items() if fields["leaf"] == name and head in config[group]]
    if not heads or not field:
        raise ConfigError(f"{given}: the run has no {group}.{name}, but {', '.join(config[group])}")
    return [f"{group}.{head}.{field}" for head in heads]


def _is_fixed(key: str) -> bool:
    """Whether another value would make another run."""
    parts = key.split(".")
    kind = parts[0] == "heads" and parts[2:] in (["kind"], ["leaf"], ["dims"], ["bins"])
    return kind or "_target_" in parts or any(f"{key}.".startswith(f"{name}.") for name in FIXED)
