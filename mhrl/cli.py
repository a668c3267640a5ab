"""The two commands: `mhrl-train` and `mhrl-evaluate`; in a checkout also `train.py` and `scripts/evaluate.py`.

Heavy imports wait until a run begins, so that `--help` and the shell's completion answer at once.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from mhrl.config import SCHEMA, nearest, register

_PACKAGED = Path(__file__).parent / "configs"
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[1] / "configs"
"""The root of the configs: inside the package where a wheel put it, else the checkout's."""

EVALUATE = """Play greedy episodes of a trained run: mhrl-evaluate run=<run dir or checkpoint> [key=value ...]

  run=           a run folder means its checkpoints/last.pt
  episodes=      how many; left out, as many as the run's own evaluations
  seed=          draws other episodes; left out, those of the run's own evaluations
  trust_config=  true allows classes from outside mhrl and its libraries, which are code

Prints eval/return_mean, eval/return_std and eval/length_mean. Without episodes= and seed= these are the figures of the
run's last evaluation, exactly. In a checkout, `python scripts/evaluate.py` is the same command."""

_OPTIONS = ("run", "episodes", "seed", "trust_config")


class RunError(CompactHydraException):
    """A run ended by a fault that has a name: Hydra prints it without a traceback, which is in `train.log`."""


def train() -> None:
    """`mhrl-train`: compose the config and run it.

    Raises:
        SystemExit: for a misspelt root key, before Hydra advises to add it; after Ctrl-C.
    """
    _prepare()
    register()
    _check_roots(sys.argv[1:])
    try:
        _task()
    except KeyboardInterrupt:  # before the run itself listens, or where it may not
        raise SystemExit(130) from None


def _check_roots(words: Sequence[str]) -> None:
    """Refuse `key=value` whose first part is no root key, with the nearest one; what adds keys is checked later."""
    if {"-sc", "--shell-completion"} & {*words}:  # query=bash, install=bash
        return
    for word in words:
        root = re.match(r"([A-Za-z_]\w*)[.=@]", word)
        if root and "=" in word and root[1] not in (*SCHEMA, "hydra", "experiment"):
            raise SystemExit(f"unknown key {root[1]}{nearest(root[1], SCHEMA)}")


@hydra.main(config_path=str(CONFIGS), config_name="train", version_base="1.3")
def _task(cfg: DictConfig) -> None:
    from mhrl.launch import run

    job = HydraConfig.get()
    choices = {group: choice for group, choice in job.runtime.choices.items() if not group.startswith("hydra/")}
    sweep = job.mode == RunMode.MULTIRUN
    try:
        run(cfg, list(job.overrides.task), folder=job.runtime.cwd, sweep=sweep, choices=choices)
    except Exception as error:
        from mhrl.experiment import FAULTS

        if isinstance(error, FAULTS):
            raise RunError(str(error)) from error
        raise


def evaluate() -> None:
    """`mhrl-evaluate`: play greedy episodes of a trained run.

    Raises:
        SystemExit: with the message, if an option or the run cannot be used.
    """
    arguments = sys.argv[1:]
    if {"-h", "--help"} & {*arguments}:
        print(EVALUATE)
        return
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown or "run" not in options:
        wrong = f"unknown option {unknown[0]}" if unknown else "run= is missing"
        raise SystemExit(f"{wrong}; options are {', '.join(f'{name}=' for name in _OPTIONS)}\n\n{EVALUATE}")
    numbers = {name: text for name, text in options.items() if name in ("episodes", "seed")}
    for name, text in numbers.items():
        if not text.isdecimal() or (name == "episodes" and int(text) < 1):
            raise SystemExit(f"{name}={text}: a whole number is expected")
    _prepare()
    from mhrl.loading import evaluate_run

    try:
        evaluation = evaluate_run(
            options["run"],
            trust_config=options.get("trust_config", "false").lower() == "true",
            **{name: int(text) for name, text in numbers.items()},
        )
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    for name, value in evaluation.metrics().items():
        print(f"{name} {value:.6g}")


def _prepare() -> None:
    """What must be so before anything heavy is imported.

    numpy's thread pool fights torch's, and is sized when numpy is imported. Modules in the launch folder can be named
    in a config (`_target_: my_heads.MyHead`); the folder comes last, so that none of them hides a library.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path.append(str(Path.cwd()))
