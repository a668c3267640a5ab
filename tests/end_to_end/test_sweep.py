"""The W&B sweep files: each of their commands is one job of the Hydra multirun that the file names."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

ROOT = Path(__file__).parents[2]


def agent_commands(sweep):
    """What W&B's agent runs for a grid, one list of words for each point; its own function writes the arguments."""
    names = list(sweep["parameters"])
    for point in itertools.product(*(sweep["parameters"][name]["values"] for name in names)):
        arguments = {name: {"value": value} for name, value in zip(names, point, strict=True)}
        macros = {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
        macros |= create_sweep_command_args({"args": arguments})
        found = ((re.fullmatch(r"\$\{(.*)\}", word), word) for word in sweep["command"])
        yield [word for macro, given in found for word in (macros[macro[1]] if macro else [given])]


def multirun(text):
    """The overrides of each job of the one `-m` command in a file's comment, by Hydra's own sweeper."""
    (line,) = re.findall(r"^# +(python train.py -m .*)$", text, re.MULTILINE)
    words = shlex.split(line)[3:]
    (jobs,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)
    return jobs


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_agents_commands_are_the_jobs_of_the_multirun_and_compose(path, shell):
    text = path.read_text()
    sweep = yaml.safe_load(text)
    assert sweep["method"] == "grid"
    commands = list(agent_commands(sweep))
    assert all(words[:3] == ["/usr/bin/env", "python", "train.py"] for words in commands)
    assert [words[3:] for words in commands] == multirun(text)
    config = OmegaConf.create(shell(" ".join([*commands[-1][1:], "--cfg", "job"])).stdout)
    for name, parameter in sweep["parameters"].items():
        assert OmegaConf.select(config, name) == parameter["values"][-1]


def test_ddpg_on_three_seeds():
    sweep = yaml.safe_load((ROOT / "sweeps" / "ddpg_seeds.yaml").read_text())
    assert list(agent_commands(sweep)) == [
        ["/usr/bin/env", "python", "train.py", "+experiment=ddpg", f"seed={seed}"] for seed in (0, 1, 2)
    ]
