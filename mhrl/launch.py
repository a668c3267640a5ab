"""From a composed config to a run: the checks that need no torch objects, the dry run, and the launch."""

import contextlib
from collections.abc import Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mhrl.config import SCHEMA, ConfigError, check_at_least, check_keys, check_present, head_kinds
from mhrl.experiment import Experiment
from mhrl.loggers import resolve_mode

BOUNDS = {
    "total_frames": 1,
    "learning_starts": 0,
    "utd_ratio": 0.0,
    "batch_size": 1,
    "num_envs": 1,
    "seed": 0,
    "threads": 1,
    "collector.frames_per_rollout": 1,
    "eval.every": 1,
    "eval.episodes": 1,
    "checkpoint.every": 1,
    "log.every": 1,
}
"""Least values of the numbers that mhrl reads itself."""


def run(cfg: DictConfig) -> None:
    """Train as `cfg` says; the task of `train.py`.

    Raises:
        ConfigError: before the first env step and before a run folder exists.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    check_keys(config, SCHEMA)
    check_present(config, SCHEMA)
    check_at_least(config, BOUNDS)
    check_kinds(config)
    for group in ("heads", "losses"):
        config[group] = {str(name): entry for name, entry in (config[group] or {}).items()}
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN and config["run_dir"] is not None:
        raise ConfigError("run_dir names one folder, a sweep makes several runs: leave it out")
    if config["dry_run"]:
        config = dry(config)
    # Relative paths mean the folder that the user types in, with hydra.job.chdir too.
    folder = HydraConfig.get().runtime.cwd if HydraConfig.initialized() else "."
    with contextlib.chdir(folder):
        Experiment(config, head_kinds()).run()


def check_kinds(config: Mapping[str, Any]) -> None:
    """Refuse what is no text or no truth value where one is expected, and seeds that torch cannot take.

    Raises:
        ConfigError: naming the key.
    """
    wandb = {f"wandb.{key}": value for key, value in config["wandb"].items()}
    texts = {key: config[key] for key in ("name", "device", "engine", "on_nonfinite")} | wandb
    for key, value in texts.items():
        if not isinstance(value, str):
            raise ConfigError(f"{key} is {value!r}: text is expected")
    if not isinstance(config["run_dir"], str | None):
        raise ConfigError(f"run_dir is {config['run_dir']!r}: a folder or null is expected")
    if not isinstance(config["dry_run"], bool):
        raise ConfigError(f"dry_run is {config['dry_run']!r}: true or false is expected")
    if config["seed"] >= 2**63:
        raise ConfigError(f"seed is {config['seed']}: a number below 2**63 is expected")


def dry(config: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest run of `config`: one update, one evaluation of one episode, one checkpoint, no W&B."""
    resolve_mode(config["wandb"]["mode"])  # a run is disabled, a misspelt mode still refused
    count = config["num_envs"]
    small = {"learning_starts": count, "total_frames": 2 * count, "utd_ratio": 1.0 / count}
    small |= {"eval": config["eval"] | {"episodes": 1}, "wandb": config["wandb"] | {"mode": "disabled"}}
    return {**config, **small, "collector": {"frames_per_rollout": 1}}
