"""From a composed config to a run: the checks that need no torch objects, the dry run, and the launch."""

from collections.abc import Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mhrl.config import SCHEMA, ConfigError, check_at_least, check_keys, head_kinds
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
    check_at_least(config, BOUNDS)
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN and config["run_dir"] is not None:
        raise ConfigError("run_dir names one folder, a sweep makes several runs: leave it out")
    if config["dry_run"]:
        config = dry(config)
    Experiment(config, head_kinds()).run()


def dry(config: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest run of `config`: one update, one evaluation of one episode, one checkpoint, no W&B."""
    resolve_mode(config["wandb"]["mode"])  # a run is disabled, a misspelt mode still refused
    count = config["num_envs"]
    small = {"learning_starts": count, "total_frames": 2 * count, "utd_ratio": 1.0 / count}
    small |= {"eval": config["eval"] | {"episodes": 1}, "wandb": config["wandb"] | {"mode": "disabled"}}
    return {**config, **small, "collector": {"frames_per_rollout": 1}}
