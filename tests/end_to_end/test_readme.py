"""Everything that the README tells a user to type is run as it stands there."""

import importlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from mhrl import cli
from mhrl.aggregators import WeightedSum

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README + GUIDE, re.DOTALL)


COMMANDS = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
PYTHON = blocks("python")


def test_the_two_lines_stand_there():
    assert "pip install -e . && python train.py +experiment=ddpg" in COMMANDS
    assert "pip install -e '.[test]' && pytest" in COMMANDS
    assert len(README.splitlines()) <= 250


def test_the_first_line_trains_ddpg_to_its_return(shell, tmp_path):
    result = shell("python train.py +experiment=ddpg", timeout=400)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "outputs/last/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["frames"] == 10_000
    assert rows[-1]["eval/return_mean"] >= -200


def train_commands():
    """The other training commands, each once, without the installs before them."""
    commands = dict.fromkeys(re.sub(r"^pip install \S+ \S+ && ", "", command) for command in COMMANDS)
    return [
        c
        for c in commands
        if c.startswith(("python train.py", "mhrl-train")) and c != "python train.py +experiment=ddpg"
    ]


@pytest.fixture
def user_files(tmp_path):
    """The head and the objective of the texts, their YAMLs, and an env of the name that they use, as a user's files."""
    for group in ("env", "head", "objective"):
        (tmp_path / "my_configs" / group).mkdir(parents=True)
    for name in ("heads", "critics", "objectives"):
        marker = {"heads": "class LinearHead", "critics": "class LinearQ", "objectives": "class Imitate"}[name]
        (tmp_path / f"my_{name}.py").write_text(next(block for block in PYTHON if marker in block))
    (tmp_path / "my_envs.py").write_text(
        "from mhrl.envs.probe import Bandit\n\n\nclass Reach(Bandit):\n    def __init__(self, size):\n"
        "        super().__init__((0.1 * size, 0.2))\n"
    )
    targets = {
        "env/reach": "my_envs.Reach",
        "head/linear": "my_heads.LinearHead",
        "head/linear_q": "my_critics.LinearQ",
        "objective/imitate": "my_objectives.Imitate",
    }
    for name, target in targets.items():
        text = next(block for block in blocks("yaml") if target in block)
        (tmp_path / "my_configs" / f"{name}.yaml").write_text(text)


@pytest.fixture
def type_in(monkeypatch, capfd):
    """Run a command as `train.py` does, in this process: another one would spend most of its time on imports."""

    def type_in(words):
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for name in ("my_heads", "my_critics", "my_envs", "my_objectives"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        cli.train()
        return capfd.readouterr().out

    return type_in


@pytest.mark.parametrize("command", train_commands())
def test_every_other_training_command_starts(type_in, train, user_files, monkeypatch, command):
    # What is traced is run operation by operation: to compile it takes half a minute, and is tested elsewhere.
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, inputs, options: graph)
    words = [word for word in shlex.split(command) if word not in ("python", "train.py", "mhrl-train")]
    if any(word.startswith("resume=") for word in words):
        small = ("total_frames=300", "learning_starts=290", "eval.episodes=1", "batch_size=16")
        stopped = train("+experiment=ddpg_shared_trunk", *small)
        # The frames of the text are many: as few as the run has and some more.
        words = [word for word in words if not word.startswith("total_frames=")]
        words = [word.replace("outputs/last", str(stopped.path)) for word in words] + ["total_frames=310"]
    elif "dry_run=true" not in words:
        words += ["dry_run=true"]
    assert "finished" in type_in([str(ROOT / "train.py"), *words])


def test_the_doctor_is_called_as_it_can_be(shell):
    (command,) = {command for command in COMMANDS if "doctor" in command}
    assert command == "python -m mhrl.doctor"  # run in tests/test_doctor.py


def test_every_command_is_tested():
    tested = {*train_commands(), "python train.py +experiment=ddpg", "python -m mhrl.doctor"}
    others = [re.sub(r"^pip install -e \S+( && |$)", "", command) for command in COMMANDS]
    elsewhere = {command for command in others if command and command not in tested} - {
        "pytest",
        "python scripts/evaluate.py run=outputs/last episodes=20",  # below
        "wandb sweep sweeps/ddpg_seeds.yaml",  # tests/end_to_end/test_sweep.py
    }
    scripts = {Path(command.split()[1]).stem for command in elsewhere}
    assert all(command.startswith("python scripts/") for command in elsewhere)
    assert scripts == {"diagnose", "plot", "dashboard", "benchmark"}
    assert all((ROOT / "tests" / "scripts" / f"test_{script}.py").is_file() for script in scripts)


def test_scripts_are_called_as_they_can_be(train, monkeypatch, capsys):
    """With the arguments of the text, on one small run."""
    run = train("+experiment=ddpg_shared_trunk", "dry_run=true")
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    for command in dict.fromkeys(COMMANDS):
        if re.match(r"python scripts/(diagnose|plot|dashboard)\.py", command) and "entity" not in command:
            script, *words = shlex.split(command)[1:]
            words = [word.replace("outputs/last", str(run.path)).replace("outputs/2*", str(run.path)) for word in words]
            monkeypatch.setattr(sys, "argv", [str(ROOT / script), *words])
            runpy.run_path(str(ROOT / script), run_name="__main__")
            assert capsys.readouterr().out


def test_the_benchmarks_are_called_as_they_can_be(monkeypatch):
    """What each of them does is tested in tests/scripts/test_benchmark.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    words = [command.split()[2:] for command in COMMANDS if command.startswith("python scripts/benchmark.py")]
    assert {command for command, *_ in words} == {"peers", "profile", "update", "to_return"}
    for one in words:
        importlib.import_module("_bench_options").parse(one)


def test_the_evaluation_command_works(shell, train, tmp_path):
    run = train("+experiment=ddpg", "dry_run=true")
    (command,) = [command for command in COMMANDS if "evaluate.py" in command]
    result = shell(command.replace("outputs/last", str(run.path)))
    assert result.returncode == 0 and "eval/return_mean" in result.stdout


@pytest.mark.parametrize("poison", [1.0, float("nan")])
def test_b03_a_weight_of_zero_leaves_a_loss_out_of_the_ten_lines(poison):
    trunk, heads, x, y = toy()
    aggregator = WeightedSum({"a": 0.0})
    optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=0.1)
    before = heads["a"].weight.clone()
    rows = aggregator.fan_out(trunk(x), heads)
    losses = {n: nn.functional.mse_loss(heads[n](rows[n]), y[n]) for n in heads}
    aggregator.backward(TensorDict(losses | {"a": losses["a"] * poison}))
    optimizer.step()
    assert torch.equal(heads["a"].weight, before) and heads["a"].weight.grad is None
    assert all(torch.isfinite(p).all() for p in trunk.parameters())


def test_the_ten_lines_run_as_they_stand():
    block = next(block for block in PYTHON if "fan_out" in block)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    code = block.split("optimizer = ")[1].splitlines()
    assert len([line for line in code if line.strip()]) <= 10
    trunk, heads, x, y = names["trunk"], names["heads"], names["x"], names["y"]
    assert all(p.grad is not None for p in [*trunk.parameters(), *heads.parameters()])
    assert set(names["losses"].keys()) == set(y) and x.shape[0] == 64


def toy(dtype=torch.float64):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(8, 16), nn.Tanh()).to(dtype)
    heads = nn.ModuleDict({name: nn.Linear(16, size) for name, size in (("a", 1), ("b", 2), ("c", 3))}).to(dtype)
    x, y = (
        torch.randn(32, 8, dtype=dtype),
        {name: torch.randn(32, head.out_features, dtype=dtype) for name, head in heads.items()},
    )
    return trunk, heads, x, y


def gradients(trunk, heads, losses):
    """Brute force: each loss alone, by name, for the trunk and for every head."""
    everything = {"trunk": list(trunk.parameters())} | {name: list(head.parameters()) for name, head in heads.items()}
    return {
        name: {
            module: torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for module, parameters in everything.items()
        }
        for name, loss in losses.items()
    }


@pytest.mark.parametrize(
    ("options", "head_factors", "trunk_factors"),
    [
        ({}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
        ({"weights": {"a": 2.0, "b": 0.5}}, {"a": 2, "b": 0.5, "c": 1}, {"a": 2, "b": 0.5, "c": 1}),
        ({"trunk_grad": 1 / 3}, {"a": 1, "b": 1, "c": 1}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        (
            {"weights": {"a": 2.0}, "trunk_grad": {"a": 0.5, "c": 0.0}},
            {"a": 2, "b": 1, "c": 1},
            {"a": 1, "b": 1, "c": 0},
        ),
    ],
    ids=["sum", "weights", "mean", "both"],
)
def test_each_head_gets_its_own_gradient_and_the_trunk_the_combination(options, head_factors, trunk_factors):
    trunk, heads, x, y = toy()
    features = trunk(x)
    alone = gradients(trunk, heads, {n: nn.functional.mse_loss(heads[n](features), y[n]) for n in heads})

    aggregator = WeightedSum(**options)
    rows = aggregator.fan_out(trunk(x), heads)
    aggregator.backward(TensorDict({n: nn.functional.mse_loss(heads[n](rows[n]), y[n]) for n in heads}))

    for name, head in heads.items():
        assert all(grad is None for other in heads if other != name for grad in alone[other][name])
        for parameter, grad in zip(head.parameters(), alone[name][name], strict=True):
            torch.testing.assert_close(parameter.grad, head_factors[name] * grad, rtol=0, atol=1e-12)
    for i, parameter in enumerate(trunk.parameters()):
        right = sum(trunk_factors[name] * alone[name]["trunk"][i] for name in heads)
        torch.testing.assert_close(parameter.grad, right, rtol=0, atol=1e-12)


def test_the_version_with_one_backward_per_head_fails_as_the_readme_says():
    trunk, heads, x, y = toy()
    features = trunk(x)
    losses = [nn.functional.mse_loss(heads[name](features), y[name]) for name in heads]
    losses[0].backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        losses[1].backward()

    deeper = nn.Linear(16, 16).double()  # a trunk of two layers: the first backward needs the second's weights
    features = deeper(trunk(x))
    losses = [nn.functional.mse_loss(heads[name](features), y[name]) for name in heads]
    optimizer = torch.optim.SGD([*trunk.parameters(), *deeper.parameters()], lr=0.1)
    losses[0].backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses[1].backward()


def test_the_library_lines_run(train, monkeypatch, tmp_path):
    run = train("+experiment=ddpg", "dry_run=true")
    block = next(block for block in PYTHON if "load_run" in block)
    names = {}
    exec(compile(block.replace('"outputs/last"', repr(str(run.path))), "README.md", "exec"), names)
    assert names["env"].action_space.contains(names["action"])
