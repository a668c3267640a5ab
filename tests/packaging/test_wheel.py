"""The wheel, installed apart from the checkout and used in a folder of a user's own."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]


def call(*command, cwd=ROOT, **variables):
    """What a command says; it must succeed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WANDB"))}
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=environment | variables, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The folder of the commands of a new environment: the wheel, and the libraries of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    configs = call(python, "-c", "import mhrl.cli; print(mhrl.cli.CONFIGS)", cwd=folder).strip()
    assert Path(configs) == Path(site) / "mhrl" / "configs"
    return folder / "bin"


@pytest.fixture
def type_(scripts, tmp_path):
    """Type a line of bash in an empty folder."""
    return lambda line: call("bash", "-c", line, cwd=tmp_path, PATH=f"{scripts}:{os.environ['PATH']}")


def test_the_wheel_holds_the_package_and_the_configs_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "mhrl").rglob("*.py")}
    configs = {f"mhrl/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert held == package | configs | {"mhrl/py.typed"}
    assert len(configs) >= 15 and len(package) >= 50


def test_the_wheel_holds_licence_commands_and_requirements(wheel):
    with zipfile.ZipFile(wheel) as archive:
        about = {
            name.split("/", 1)[1]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name
        }
    assert about["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "mhrl-train = mhrl.cli:train" in about["entry_points.txt"]
    assert "mhrl-evaluate = mhrl.cli:evaluate" in about["entry_points.txt"]
    fields = about["METADATA"].split("\n\n")[0].splitlines()
    assert "License-Expression: MIT" in fields and "Requires-Python: >=3.11" in fields
    assert "Requires-Dist: torch<2.15,>=2.14.1" in fields


def test_it_trains_in_an_empty_folder(type_, tmp_path):
    said = type_("mhrl-train +experiment=ddpg dry_run=true wandb.mode=disabled")
    assert "Pendulum-v1" in said and "finished" in said
    assert (tmp_path / "outputs" / "last" / "checkpoints" / "last.pt").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


FILES = {
    "my_heads.py": """
        import torch
        from mhrl.functional import to_box
        from mhrl.heads import ActionHead


        class Linear(ActionHead):
            def __init__(self, in_features, space, gain=1.0):
                super().__init__(in_features, space)
                self.linear = torch.nn.Linear(in_features, space.shape[0])
                self.gain = gain

            def forward(self, features):
                return to_box(torch.tanh(self.gain * self.linear(features)), self.center, self.half_range)
        """,
    "my_objectives.py": """
        from mhrl.objectives import ValueBased


        class Louder(ValueBased):
            def __init__(self, volume, **arguments):
                super().__init__(**arguments)
                self.volume = volume

            def summary(self, metrics):
                return {**super().summary(metrics), "head/value/volume": self.volume}
        """,
    "my_envs.py": """
        import gymnasium
        import numpy


        class Reach(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (2,))

            def __init__(self, size):
                self.action_space = gymnasium.spaces.Box(-size, size, (2,))

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return numpy.zeros(2, numpy.float32), {}

            def step(self, action):
                return numpy.zeros(2, numpy.float32), -float(numpy.abs(action).sum()), True, False, {}
        """,
    "my_configs/head/linear.yaml": "{_target_: my_heads.Linear, gain: 0.5}",
    "my_configs/objective/louder.yaml": "{defaults: [ddpg], _target_: my_objectives.Louder, volume: 11.0}",
    "my_configs/env/reach.yaml": "{_target_: my_envs.Reach, size: 3.0}",
}


def test_it_trains_a_head_an_objective_and_an_env_of_the_users_own(type_, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    own = "heads.actor.kind=linear objective=louder env=reach num_envs=2 env.vectorization_mode=async"
    said = type_(f"mhrl-train --config-dir my_configs +experiment=ddpg {own} dry_run=true")
    assert "linear" in said and "finished" in said
    assert '"head/value/volume": 11.0' in (tmp_path / "outputs" / "last" / "metrics.jsonl").read_text()

    (suggested,) = [line.strip() for line in said.split("next\n")[1].splitlines() if "evaluate" in line]
    assert suggested.startswith("mhrl-evaluate run=outputs/") and suggested.endswith("trust_config=true")
    assert "eval/return_mean -" in type_(suggested)


def test_bash_completes_its_choices(type_):
    script = """
        eval "$(mhrl-train -sc install=bash)"
        tab() {
            COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            hydra_bash_completion
            echo "${COMPREPLY[*]}"
        }
        complete -p mhrl-train
        tab mhrl-train +experiment=ddpg_m
        tab mhrl-train +experiment=ddpg trunk=
        tab mhrl-train head=det
        """
    installed, experiment, trunk, head = type_(dedent(script)).splitlines()
    assert "-F hydra_bash_completion mhrl-train" in installed
    assert experiment == "+experiment=ddpg_multi_head"
    assert trunk.split() == ["trunk=cnn", "trunk=identity", "trunk=mlp"]
    assert head == "head=deterministic"
