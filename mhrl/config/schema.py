"""The root of a config: every key that mhrl itself reads, with its kind and range."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt, MaxLen, MinLen
from pydantic import AllowInfNan

from mhrl.config.check import Group, check_fields, check_present
from mhrl.config.errors import ConfigError

Count = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Positive = Annotated[float, Gt(0), AllowInfNan(False)]
Rate = NonNegative | None
"""A learning rate; null leaves it to `optimizer.lr`."""

OPEN = dict[str, Any] | None
"""An open mapping: its names are the user's own."""

ENV_FIELDS = {
    "kwargs": OPEN,
    "vectorization_mode": Literal["sync", "async"],
    "step_timeout": Positive,
    "action_mask": Annotated[str, MinLen(1)],
}
"""Fields of `env` that are mhrl's own and not passed on: more arguments, how envs are stepped (seconds), and where they
say which actions are legal: `auto`, `none`, `info`, or the key of a part of the observation."""

OPTIMIZER_FIELDS = {"clip_norm": Positive | None, "clip_scope": Literal["global", "variable"]}
"""Fields of `optimizer` that are the engine's: a bound on the gradient's norm, of the whole or of each parameter."""

OBJECTIVE_FIELDS = {
    "bins": Annotated[int, Ge(2)] | None,
    "dueling": Literal["none", "mean", "max"],
    "twin": bool,
}
"""Fields of `objective` that are the network's: what its heads are, and how many critics there are."""

SCHEMA: dict[str, Any] = {
    "name": str,
    "total_frames": Count,
    "learning_starts": Annotated[int, Ge(0)],
    "utd_ratio": NonNegative,
    "batch_size": Count,
    "num_envs": Count,
    "seed": Annotated[int, Ge(0), Lt(2**63)],
    "device": str,
    "engine": Literal["eager", "compiled"],
    "precision": Literal["fp32", "bf16"],
    "threads": Count,
    "run_dir": str | None,
    "resume": str | None,
    "trust_config": bool,
    "dry_run": bool,
    "on_nonfinite": Literal["error", "skip"],
    "collector": {"frames_per_rollout": Count},
    "eval": {"every": Count, "episodes": Count, "video": bool},
    "checkpoint": {"every": Count, "keep_last": Count | None},
    "log": {"every": Count},
    "wandb": {
        "mode": Literal["auto", "online", "offline", "disabled"],
        "project": Annotated[str, MinLen(1)],
        "dir": str,
        "entity": str | None,
        "tags": list[Annotated[str, MinLen(1), MaxLen(64)]],  # longer ones W&B refuses
        "notes": str | None,
        "watch": Literal[False, "gradients", "parameters", "all"],
        "histograms": bool,
        "artifacts": bool,
    },
    "env": Group(ENV_FIELDS),
    "trunk": Group({"lr": Rate}),
    "heads": OPEN,
    "losses": OPEN,
    "objective": Group(OBJECTIVE_FIELDS),
    "aggregator": Group(),
    "optimizer": Group({"lr": NonNegative, **OPTIMIZER_FIELDS}),
    "replay": Group(),
    "exploration": Group(),
    "normaliser": Group(),
}
"""Groups are checked against their `_target_`, `heads` and `losses` once the env's spaces are known."""


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The composed config with every value of the root as its annotation has it; null is an empty open mapping.

    Raises:
        ConfigError: for a key that is unknown, missing, of the wrong kind or out of range.
    """
    if "experiment" in config:
        raise ConfigError(
            f"unknown key experiment, which holds {config['experiment']!r}: a file in configs/experiment lacks its "
            "first line, `# @package _global_`, so that its values would have no effect; add that line"
        )
    checked = check_fields(config, SCHEMA)
    check_present(checked, SCHEMA)
    return {**checked, "heads": checked["heads"] or {}, "losses": checked["losses"] or {}}
