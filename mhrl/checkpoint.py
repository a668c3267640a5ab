"""Checkpoints: one nested dict of tensors and plain values, written whole or not at all."""

import shutil
import zipfile
from collections.abc import Iterable
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hydra.utils import get_object
from torch import nn

import mhrl
from mhrl.files import written_whole

FORMAT = 5
"""Version of the layout."""

PACKAGES = ("torch", "tensordict", "torchrl", "gymnasium", "numpy")
ENTRIES = ("config", "counters", "network", "target", "optimizer", "aggregator", "exploration", "normaliser")
"""What every checkpoint holds; one that a run can go on from also `replay`, `env` and `rng`."""

_ARRAY, _SCALAR = "__array__", "__scalar__"

_PARTS = (
    "mhrl.",
    "torch.nn.",
    "torch.optim.",
    "torchrl.modules.models.",
    "torchjd.",
    "gymnasium.envs.",
    "gymnasium.wrappers.",
)
"""Where the classes are defined that build a part of a run. torchrl's envs, for one, are modules that import others."""

TRUSTED = ("mhrl", "torch", "torchrl", "gymnasium", "torchjd")
"""Packages whose classes a checkpoint's config may name: a `_target_` is code."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read, or does not fit; names the file and the entry."""


class TornCheckpointError(CheckpointError):
    """A file that no loader can read: cut short, empty, or no checkpoint at all."""


def versions() -> dict[str, str]:
    """Versions of the packages that a checkpoint depends on."""
    return {"mhrl": mhrl.__version__, **{name: metadata.version(name) for name in PACKAGES}}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to a temporary name, sync, rename: a reader sees the old file or the new one, never half.

    Args:
        path: the file's final name.
        state: nested dicts, lists and tuples of plain values, tensors and numpy arrays.

    Raises:
        CheckpointError: if the file cannot be written; what was there before is intact.
    """
    try:
        with written_whole(path) as file:
            torch.save(to_plain({"format": FORMAT, "versions": versions(), **state}), file)
    # torch's writer turns a full disk into a RuntimeError.
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path} could not be written: {str(error).splitlines()[0]}{_free(path)}") from error


def _free(path: Path) -> str:
    """How much room there is where `path` should be."""
    try:
        return f" ({shutil.disk_usage(path.parent).free / 2**20:,.1f} MiB free there)"
    except OSError:  # the folder has gone
        return ""


def to_plain(node: Any) -> Any:  # noqa: ANN401
    """`node` with every numpy array and scalar as a marked tensor or number, which the safe loader accepts."""
    match node:
        case dict():
            return {key: to_plain(value) for key, value in node.items()}
        case list() | tuple():
            return type(node)(map(to_plain, node))
        case np.ndarray():
            # Strides are kept: BLAS gives other last bits for another order. torch takes no read-only memory.
            own = node if node.flags.forc and node.flags.writeable else node.copy(order="K")
            return {_ARRAY: torch.from_numpy(own)}
        case np.generic():
            return {_SCALAR: node.item(), "dtype": node.dtype.name}
    return node


def from_plain(node: Any) -> Any:  # noqa: ANN401
    """Inverse of `to_plain`."""
    match node:
        case {"__array__": tensor}:
            return tensor.numpy()
        case {"__scalar__": value, "dtype": dtype}:
            return np.dtype(dtype).type(value)
        case dict():
            return {key: from_plain(value) for key, value in node.items()}
        case list() | tuple():
            return type(node)(map(from_plain, node))
    return node


def load_checkpoint(path: Path, *, trust_config: bool = False) -> dict[str, Any]:
    """Read a checkpoint with torch's safe loader, onto the CPU.

    Args:
        path: the file.
        trust_config: allow any `_target_` in the checkpoint's config; it is code.

    Raises:
        TornCheckpointError: if the file cannot be read.
        CheckpointError: if it is missing, of another format, or names a target that is not trusted.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    try:
        _check_whole(path)
        # Mapped, so that the rows of a large replay are not held a second time.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (MemoryError, PermissionError) as error:
        raise CheckpointError(f"{path} cannot be read now: {error}") from error
    # A torn file shows as BadZipFile, OSError, RuntimeError or an unpickling error, by where it was cut.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise TornCheckpointError(f"{path} cannot be read: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"{path} has format {found!r}, this version reads {FORMAT}")
    for key in ENTRIES:
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
        if "${" in str(state["config"]):  # what it stands for would come after this check
            raise CheckpointError(
                f"{path}: its config is not resolved, as mhrl saves it; pass trust_config=true if you trust this file"
            )
    return from_plain(state)


def _check_whole(path: Path) -> None:
    """Compare every part of a file with its check sum; a mapped file is read without.

    Raises:
        ValueError: if it is empty, cut short, or a part has changed.
        zipfile.BadZipFile: the same, found by the module.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError("it is empty")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"its {size} bytes are no whole file")
    with zipfile.ZipFile(path) as file:
        if (part := file.testzip()) is not None:
            raise ValueError(f"its part {part} has changed")


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
    if not isinstance(found, type) or not f"{found.__module__}.".startswith(_PARTS):
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
    except (RuntimeError, ValueError) as error:  # torch's, and that of a module's own extra state
        raise CheckpointError(f"{path}: entry {name!r} does not fit this configuration: {error}") from error


def load_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], path: Path, fresh: Iterable[str] = ()
) -> None:
    """Load each parameter's state by the parameter's name; the groups' settings stay those of the config.

    Args:
        optimizer: takes the state.
        state: its entry in a checkpoint.
        path: the checkpoint, for the message.
        fresh: parts whose parameters, `<part>.<name>`, begin without a state.

    Raises:
        CheckpointError: naming the parameters that only one of the two has.
    """
    own, parts = optimizer.state_dict(), tuple(f"{part}." for part in fresh)
    held, expected = ({k: v for k, v in _by_name(s).items() if not k.startswith(parts)} for s in (state, own))
    if strangers := held.keys() ^ expected.keys():
        raise CheckpointError(f"{path}: entry 'optimizer' does not fit: {', '.join(sorted(strangers))}")
    indices = ((i, name) for group in own["param_groups"] for i, name in _named(group))
    # A copy: the optimizer takes the tensors as they are and writes to them.
    own["state"] = deepcopy({i: held[name] for i, name in indices if held.get(name) is not None})
    optimizer.load_state_dict(own)


def _by_name(state: dict[str, Any]) -> dict[str, Any]:
    """`{parameter: its state, or None}` of an optimizer's state dict."""
    return {name: state["state"].get(i) for group in state["param_groups"] for i, name in _named(group)}


def _named(group: dict[str, Any]) -> zip:
    """Pairs of index and name of a group's parameters."""
    return zip(group["params"], group["param_names"], strict=True)
