"""From a composed config to a run: the checks that need no torch, what a resume takes over, the dry run.

Heavy imports wait until the config has passed, so that a misspelt key is refused at once.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mhrl.config import ConfigError, check_config, head_kinds


def run(
    cfg: DictConfig,
    overrides: Sequence[str] = (),
    *,
    folder: str = ".",
    sweep: bool = False,
    choices: Mapping[str, str] | None = None,
) -> None:
    """Train as `cfg` says; the task of `mhrl-train`.

    Args:
        cfg: the composed config.
        overrides: the command line that it was composed from; `resume` reads it.
        folder: what relative paths mean: where the user types, with hydra.job.chdir too.
        sweep: whether this is one run of several.
        choices: the file chosen from each config group, `{"env": "hybrid"}`, for `run.json` and W&B's tags; a resumed
            run keeps those that it was begun with.

    Raises:
        ConfigError: before the first env step and before a run folder exists.
    """
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    with contextlib.chdir(folder):
        if config.get("resume") is not None:
            _resume(config, overrides)
        else:
            _begin(config, choices or {}, sweep=sweep)


def _begin(config: dict[str, Any], choices: Mapping[str, str], *, sweep: bool) -> None:
    """Check the config and start a new run."""
    config = check_config(config)
    if sweep and config["run_dir"] is not None:
        raise ConfigError("run_dir names one folder, a sweep makes several runs: leave it out")
    from mhrl.experiment import Experiment

    Experiment(dry(config) if config["dry_run"] else config, head_kinds(), choices=choices).run()


def _resume(config: dict[str, Any], overrides: Sequence[str]) -> None:
    """Go on with a run; of `config`, which Hydra composed from the defaults, only the two keys below are read."""
    from mhrl.experiment import Experiment
    from mhrl.resume import resume

    resumption = resume(str(config["resume"]), list(overrides), trust_config=config["trust_config"] is True)
    Experiment(resumption.config, head_kinds(), resumption).run()


def dry(config: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest run of `config`: one update, one evaluation of one episode, one checkpoint, no W&B."""
    from mhrl.loggers import resolve_mode

    resolve_mode(config["wandb"]["mode"])  # a run is disabled, a misspelt mode still refused
    count, n_steps = config["num_envs"], config["objective"].get("n_steps", 1)
    small = {"learning_starts": n_steps * count, "total_frames": (n_steps + 1) * count, "utd_ratio": 1.0 / count}
    small |= {"eval": config["eval"] | {"episodes": 1}, "wandb": config["wandb"] | {"mode": "disabled"}}
    return {**config, **small, "collector": {"frames_per_rollout": 1}}
