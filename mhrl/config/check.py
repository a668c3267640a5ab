"""Checks of a composed config: unknown names are refused with the nearest valid one."""

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.errors import CompactHydraException
from hydra.utils import get_object

SCHEMA: dict[str, Any] = {
    "name": None,
    "total_frames": None,
    "learning_starts": None,
    "utd_ratio": None,
    "batch_size": None,
    "num_envs": None,
    "seed": None,
    "device": None,
    "engine": None,
    "threads": None,
    "run_dir": None,
    "dry_run": None,
    "on_nonfinite": None,
    "collector": {"frames_per_rollout": None},
    "eval": {"every": None, "episodes": None},
    "checkpoint": {"every": None},
    "log": {"every": None},
    "wandb": {"mode": None, "project": None, "dir": None},
    "env": None,
    "trunk": None,
    "heads": None,
    "losses": None,
    "objective": None,
    "aggregator": None,
    "optimizer": None,
    "replay": None,
    "exploration": None,
}
"""The keys that mhrl itself reads; None ends the check here (groups are checked against their `_target_`)."""


class ConfigError(CompactHydraException, ValueError):
    """A configuration that cannot run; the message names the key. Hydra prints it without a traceback."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`: did you mean x?`, or the list of what is valid."""
    options = sorted(map(str, valid))
    close = difflib.get_close_matches(name, options, 1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else f": choose from {', '.join(options)}"


def check_keys(given: Mapping[str, Any], valid: Mapping[str, Any] | Iterable[str], where: str = "") -> None:
    """Refuse keys of `given` that are not in `valid`, at every level that `valid` spells out.

    Raises:
        ConfigError: naming the key and the nearest valid one.
    """
    known = dict.fromkeys(valid) if not isinstance(valid, Mapping) else valid
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"unknown key {where}{key}{nearest(str(key), known)}")
        below = known[key]
        if isinstance(below, Mapping):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}{key} is {value!r}: a mapping with {', '.join(below)} is expected")
            check_keys(value, below, f"{where}{key}.")


def check_present(given: Mapping[str, Any], required: Mapping[str, Any], where: str = "") -> None:
    """Refuse a config that lacks a key of `required`, at every level that it spells out.

    Raises:
        ConfigError: naming the key.
    """
    for key, below in required.items():
        if key not in given:
            raise ConfigError(f"{where}{key} is missing")
        if isinstance(below, Mapping):
            check_present(given[key], below, f"{where}{key}.")


def check_arguments(
    node: Mapping[str, Any], where: str, injected: Iterable[str] = (), also: Iterable[str] = ()
) -> None:
    """Refuse entries of a `_target_` node that its signature does not have.

    Args:
        node: `_target_` and its arguments.
        where: the node's key, for the message.
        injected: arguments that mhrl passes itself; not to be configured.
        also: further valid fields of the node, which are no arguments.

    Raises:
        ConfigError: naming the key and the nearest valid one, or a target that cannot be imported.
    """
    if "_target_" not in node:
        raise ConfigError(f"{where} has no _target_: a dotted path to a class or function is expected")
    try:
        target = get_object(str(node["_target_"]))
    except Exception as error:
        raise ConfigError(f"{where}._target_={node['_target_']} cannot be imported: {error}") from error
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    valid = {p.name for p in parameters} - set(injected) | {"_target_", *also}
    check_keys(node, valid, f"{where}.")


def check_at_least(config: dict[str, Any], bounds: Mapping[str, float]) -> None:
    """Refuse numbers below their bound; where the bound is an int, so must the number be, and 1e6 becomes one.

    Args:
        config: nested; whole floats of integer fields are replaced in place.
        bounds: least values by dotted key.

    Raises:
        ConfigError: naming the key, the value and what is expected.
    """
    for key, bound in bounds.items():
        *path, last = key.split(".")
        node = config
        for part in path:
            node = node[part]
        value, kind = node[last], "whole number" if isinstance(bound, int) else "number"
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < bound or (isinstance(bound, int) and value != int(value)):
            raise ConfigError(f"{key} is {value!r}: a {kind} >= {bound} is expected")
        node[last] = type(bound)(value)
