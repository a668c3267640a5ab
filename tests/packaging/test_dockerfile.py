"""The Dockerfile, read as text: there is no engine where the tests run. Its style is hadolint's business."""

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()


def instructions():
    """`(instruction, arguments)` in order, continued lines joined."""
    lines = [line for line in TEXT.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def all_of(name):
    return [arguments for instruction, arguments in instructions() if instruction == name]


def ignored(path):
    """Whether .dockerignore keeps a path out: the last pattern that matches it or a folder above it decides."""
    answer = False
    parts = path.split("/")
    heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            names = heads + parts if "**/" in line else heads
            if any(fnmatch(name, pattern) for name in names):
                answer = not line.startswith("!")
    return answer


def test_the_base_is_a_slim_python_that_the_package_allows():
    assert all_of("FROM") == ["python:3.11-slim"]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"


def test_it_runs_as_a_user_without_rights():
    (user,) = all_of("USER")
    arguments = dict(argument.split("=") for argument in all_of("ARG"))
    assert user == "$UID" and int(arguments["UID"]) > 0
    order = [instruction for instruction, _ in instructions()]
    assert max(i for i, name in enumerate(order) if name == "RUN") < order.index("USER") < order.index("CMD")
    assert any(f'useradd --create-home --uid "{user}" mhrl' in run for run in all_of("RUN"))


def test_runs_land_in_the_volume():
    outputs = yaml.safe_load((ROOT / "configs" / "train.yaml").read_text())["wandb"]["dir"]
    assert outputs == "outputs"
    assert [Path(all_of("WORKDIR")[-1], outputs)] == [Path(volume) for volume in all_of("VOLUME")]
    assert any("install --directory --owner=mhrl /outputs" in run for run in all_of("RUN"))


def test_the_default_command_is_the_readmes_first():
    (command,) = all_of("CMD")
    assert json.loads(command) == ["mhrl-train", "+experiment=ddpg"]
    assert "mhrl-train" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "&& python train.py +experiment=ddpg  " in (ROOT / "README.md").read_text()


def test_a_package_index_can_be_given_and_none_is_named():
    assert 'PIP_INDEX_URL=""' in all_of("ARG")
    order = instructions()
    assert order.index(("ARG", 'PIP_INDEX_URL=""')) < min(
        i for i, (_, text) in enumerate(order) if "pip install" in text
    )
    assert not re.search(r"https?://", TEXT)


def test_every_source_exists_and_is_sent_to_the_builder():
    sources = [source for copy in all_of("COPY") for source in copy.split()[:-1]]
    assert {*sources} == {"pyproject.toml", "LICENSE", "README.md", "configs", "mhrl"}
    for source in sources:
        assert (ROOT / source).exists() and not ignored(source)
    assert not ignored("mhrl/heads/base.py") and not ignored("configs/head/critic.yaml")


@pytest.mark.parametrize(
    "path", [".git/config", "tests/conftest.py", "outputs/last", ".env", "mhrl/heads/__pycache__/x.pyc"]
)
def test_nothing_else_is_sent_to_the_builder(path):
    assert ignored(path)


def test_dependencies_are_installed_before_the_code_is_copied():
    order = [text for _, text in instructions()]
    dependencies = next(i for i, text in enumerate(order) if 'pip install --no-cache-dir ".[$EXTRAS]"' in text)
    assert order.index("pyproject.toml ./") < dependencies < order.index("mhrl mhrl")


def test_its_extras_exist_and_are_all_that_runs_may_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = [argument.split("=")[1].strip('"') for argument in all_of("ARG") if argument.startswith("EXTRAS=")]
    assert {*asked.split(",")} == {*extras} - {"test", "dev", "plot", "dashboard", "bench"}  # the last are for scripts
    assert "MUJOCO_GL=egl" in all_of("ENV")


def test_what_hadolint_lets_pass_has_its_reason_in_the_line_before():
    lines = TEXT.splitlines()
    waived = [i for i, line in enumerate(lines) if "hadolint ignore=" in line]
    assert waived and all(lines[i - 1].startswith("# ") and lines[i - 1].endswith(":") for i in waived)
