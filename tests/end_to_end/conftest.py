"""Runs of the real thing: in this process where the exit code is not the point, else in a subprocess."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mhrl.config import head_kinds, register
from mhrl.experiment import Experiment
from mhrl.launch import run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # toy_envs, as a user's own module beside their script


class Run:
    """What a finished run left."""

    def __init__(self, path):
        self.path = Path(path)

    @property
    def rows(self):
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    @property
    def info(self):
        return json.loads((self.path / "run.json").read_text())

    def checkpoint(self, name="last"):
        return torch.load(self.path / "checkpoints" / f"{name}.pt", weights_only=True)

    def leaves(self):
        """`{path: leaf}` of the newest checkpoint, its config excepted."""
        return flatten({key: value for key, value in self.checkpoint().items() if key != "config"})

    def differences(self, other):
        """Names of the leaves of two runs' newest checkpoints that are not the same bit for bit."""
        left, right = self.leaves(), other.leaves()
        return sorted(left.keys() ^ right.keys()) + [
            key
            for key, value in left.items()
            if key in right and not (torch.equal(value, right[key]) if torch.is_tensor(value) else value == right[key])
        ]


def flatten(node, where=""):
    if isinstance(node, dict):
        return {k: v for key, value in node.items() for k, v in flatten(value, f"{where}/{key}").items()}
    if isinstance(node, list | tuple):
        return {k: v for i, value in enumerate(node) for k, v in flatten(value, f"{where}/{i}").items()}
    return {where: node}


def composed(*overrides):
    register()
    return compose("train", overrides=list(overrides))


@pytest.fixture(autouse=True)
def _launch_folder(tmp_path, monkeypatch):
    """Runs start in an empty folder, without a W&B key or mode."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def train(tmp_path):
    """Train in this process: `train("+experiment=ddpg", "total_frames=300")` returns the `Run`."""
    count = iter(range(1000))

    def train(*overrides):
        path = tmp_path / f"run{next(count)}"
        given = dict(override.partition("=")[::2] for override in overrides)
        default = {} if "resume" in given else {"run_dir": path, "wandb.mode": "disabled"}
        words = [f"{key}={value}" for key, value in default.items() if key not in given] + list(overrides)
        with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            run(composed(*words), words)
        if "resume" in given:
            path = Path(given["resume"])
            path = path.parents[1] if path.suffix == ".pt" else path
        return Run(path)

    return train


@pytest.fixture
def build():
    """Build an `Experiment` and leave its loop to the test."""
    built = []

    def build(*overrides):
        with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            config = OmegaConf.to_container(composed("wandb.mode=disabled", *overrides), resolve=True)
            built.append(Experiment(config, head_kinds()))
        return built[-1]

    yield build
    for experiment in built:
        experiment.close()


@pytest.fixture
def shell():
    """Run a README command in a subprocess: `shell("python train.py ...")` returns the completed process."""

    def shell(command, timeout=120, **environment):
        words = command.split()
        if words[0] == "python":
            words = [sys.executable, str(ROOT / words[1]), *words[2:]]
        else:
            words[0] = str(Path(sys.executable).parent / words[0])
        env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": str(Path(__file__).parent)}
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env | environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return shell
