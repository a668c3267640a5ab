"""Checkpoints: one nested dict of tensors and plain values, written whole or not at all."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from hydra.utils import get_object
from torch import nn

import mhrl

FORMAT = 1
"""Version of the layout."""

PACKAGES = ("torch", "tensordict", "torchrl", "gymnasium", "numpy")
TRUSTED = ("mhrl", "torch", "torchrl", "gymnasium", "torchjd")
"""Packages whose classes a checkpoint's config may name: a `_target_` is code."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit; names the file and the entry."""


def versions() -> dict[str, str]:
    """Versions of the packages that a checkpoint depends on."""
    return {"mhrl": mhrl.__version__, **{name: metadata.version(name) for name in PACKAGES}}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to a temporary name, sync, rename: a reader sees the old file or the new one, never half.

    Args:
        path: the file's final name.
        state: nested dicts, lists and plain values, tensors at the leaves.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "versions": versions(), **state}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, *, trust_config: bool = False) -> dict[str, Any]:
    """Read a checkpoint with torch's safe loader, onto the CPU.

    Args:
        path: the file.
        trust_config: allow any `_target_` in the checkpoint's config; it is code.

    Raises:
        CheckpointError: if the file is missing, torn, of another format, or names a target that is not trusted.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # A torn file shows as EOFError, OSError, RuntimeError or an unpickling error, by where it was cut.
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"{path} has format {found!r}, this version reads {FORMAT}")
    for key in ("config", "counters", "network", "target", "optimizer"):
        if key not in state:
            raise CheckpointError(f"{path} has no entry {key!r}")
    if not trust_config:
        for where, target in targets(state["config"]):
            if not is_trusted(target):
                raise CheckpointError(
                    f"{path}: {where}={target} is not a class of {', '.join(TRUSTED)}; "
                    "pass trust_config=true if you trust this file"
                )
        env = state["config"].get("env", {})
        if ":" in f"{env.get('id')} {(env.get('kwargs') or {}).get('id')}":
            raise CheckpointError(f"{path}: env.id imports a module; pass trust_config=true if you trust this file")
    return state


def is_trusted(target: str) -> bool:
    """Whether a checkpoint may name `target`: `gymnasium.make`, or a class that builds a part of a run.

    A package's name is not enough, since `torch.os.system` begins with torch: what counts is where the class is
    defined and what it is.
    """
    if target == "gymnasium.make":
        return True
    if target.split(".")[0] not in TRUSTED:
        return False
    try:
        found = get_object(target)
    except Exception:
        return False
    if not isinstance(found, type) or found.__module__.split(".")[0] not in TRUSTED:
        return False
    return found.__module__.startswith("mhrl.") or issubclass(found, (nn.Module, torch.optim.Optimizer, gym.Env))


def targets(config: Any, where: str = "") -> list[tuple[str, str]]:  # noqa: ANN401
    """Every `_target_` in a nested config, with its key."""
    if isinstance(config, dict):
        found = [(f"{where}{key}", value) for key, value in config.items() if key == "_target_"]
        return found + [hit for key, value in config.items() for hit in targets(value, f"{where}{key}.")]
    if isinstance(config, list):
        return [hit for i, value in enumerate(config) for hit in targets(value, f"{where}{i}.")]
    return []


def load_module(module: nn.Module, state: dict[str, Any], name: str, path: Path) -> None:
    """Load a state dict strictly.

    Raises:
        CheckpointError: naming the entry and each missing, unexpected or mis-shaped key.
    """
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: entry {name!r} does not fit this configuration: {error}") from error
