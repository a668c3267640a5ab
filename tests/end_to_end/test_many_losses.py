"""docs/many-losses.md: its code and its commands run as they stand there, and what it says of rules holds."""

import importlib.util
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hydra.utils import get_object
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import nn

from mhrl import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "many-losses.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


PYTHON = blocks("python")
COMMANDS = [line for block in blocks("bash") for line in block.splitlines()]
TRAINING = [command for command in COMMANDS if command.startswith("python train.py")]
TESTED_ELSEWHERE = ("python scripts/benchmark.py", "python scripts/study.py")


# The code


@pytest.fixture(scope="module")
def page():
    """What the blocks leave, run one after the other; those that are to fail do so with the words that are shown."""
    names = {}
    for block in PYTHON:
        code = compile(block, "many-losses.md", "exec")
        if said := re.search(r"# RuntimeError: (.*)", block):
            with pytest.raises(RuntimeError, match=said[1]):
                exec(code, names)
        else:
            exec(code, names)
    return names


def test_all_blocks_run(page):
    assert len([block for block in PYTHON if "# RuntimeError" in block]) == 2
    assert len([block for block in PYTHON if "assert" in block]) == 2
    assert page["balancer"].reduce is page["over_processes"]


def test_without_a_step_in_between_several_backwards_add_up_to_one(page):
    def gradients(backward):
        trunk, heads, x, y = page["trunk"], page["heads"], page["x"], page["y"]
        nn.ModuleList([trunk, heads]).zero_grad()
        features = trunk(x)
        backward([page["loss_fn"](heads[name](features), y[name]) for name in heads])
        return [parameter.grad.clone() for parameter in trunk.parameters()]

    apart = gradients(lambda losses: [loss.backward(retain_graph=True) for loss in losses])
    torch.testing.assert_close(apart, gradients(lambda losses: sum(losses).backward()))


# The commands


@pytest.fixture
def type_in(monkeypatch):
    """Run a training command in this process, as `train.py` does."""

    def type_in(words):
        monkeypatch.setattr(sys, "argv", [str(ROOT / "train.py"), *words])
        monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])
        cli.train()

    return type_in


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", TRAINING)
def test_every_training_command_starts(type_in, tmp_path, command):
    words = [word.replace("seed=0,1,2,3,4", "seed=0,1") for word in shlex.split(command)[2:]]
    type_in([*words, "dry_run=true"])
    runs = [*tmp_path.glob("outputs/*/run.json")]
    assert len({path.parent.resolve() for path in runs}) == (2 if "-m" in words else 1)
    assert all(json.loads(path.read_text())["status"] == "finished" for path in runs)


def test_the_scripts_read_such_runs(type_in, tmp_path, monkeypatch, capsys):
    small = (
        "total_frames=300",
        "learning_starts=100",
        "log.every=50",
        "eval.every=100",
        "eval.episodes=10",
        "wandb.mode=disabled",
    )
    type_in(["-m", "+experiment=conflict_probe", "aggregator=upgrad", "aggregator.level=params", "seed=0,1", *small])
    others = [command for command in COMMANDS if command not in TRAINING and not command.startswith(TESTED_ELSEWHERE)]
    capsys.readouterr()
    for command in others:
        name, *words = shlex.split(command.removeprefix("python scripts/"))
        folders = sorted(str(path) for path in tmp_path.glob("outputs/2*"))
        expanded = [folder for word in words for folder in (folders if "*" in word else [word])]
        script(name.removesuffix(".py")).main(expanded)
    said = capsys.readouterr().out
    assert "Aggregator upgrad@params" in said
    assert {command.split()[1] for command in others} == {
        "scripts/diagnose.py",
        "scripts/summarise.py",
        "scripts/plot.py",
    }


def test_what_is_tested_elsewhere_has_its_tests():
    named = {command.split()[1] for command in COMMANDS if command.startswith(TESTED_ELSEWHERE)}
    assert named == {"scripts/benchmark.py", "scripts/study.py"}
    for path in named:
        assert (ROOT / path).is_file()
        assert (ROOT / "tests" / "scripts" / f"test_{Path(path).name}").is_file()


# What it says


def table(title):
    """The rows of the table whose first column has that title."""
    lines = PAGE[PAGE.index(f"| {title} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_it_lists_every_rule():
    assert sorted(rule.strip("`") for rule, *_ in table("rule")) == sorted(
        path.stem for path in (ROOT / "configs" / "aggregator").glob("*.yaml")
    )


SCALES = {"sum": 1.0, "mean": 1 / 3, "mean; a convex combination": 1 / 3, "1 + c times the mean, c = 0.4": 1.4 / 3}


@pytest.mark.parametrize(("rule", "scale"), [(row[0].strip("`"), row[2]) for row in table("rule")])
def test_scales_of_three_orthogonal_rows_of_one_length(rule, scale):
    if rule in ("uncertainty", "dwa", "gradnorm"):  # which learn theirs
        assert scale == "sum"
        return
    if rule == "torchjd":
        assert scale == "its own"
        return
    config = OmegaConf.load(ROOT / "configs" / "aggregator" / f"{rule}.yaml")
    aggregator = get_object(config._target_)()
    rows = 7.0 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(aggregator.combine(rows), SCALES[scale] * rows.sum(0), rtol=1e-3, atol=0)


def test_every_metric_that_it_explains_is_logged(type_in, tmp_path):
    small = (
        "total_frames=120",
        "learning_starts=100",
        "log.every=10",
        "eval.every=100",
        "eval.episodes=2",
        "wandb.mode=disabled",
    )
    type_in(["+experiment=conflict_probe", "aggregator=upgrad", "aggregator.level=params", *small])
    rows = (tmp_path / "outputs" / "last" / "metrics.jsonl").read_text().splitlines()
    logged = {key for line in rows for key in json.loads(line)}
    for metric in re.findall(r"`([a-z_]+/[^`]*)`", " ".join(row[0] for row in table("metric"))):
        pattern = re.escape(metric.replace("...", "<any>"))
        pattern = re.sub(r"<\w+>", lambda found: "[a-z_/]+" if found[0] == "<any>" else "[a-z]+(_[a-z]+)?", pattern)
        assert any(re.fullmatch(pattern, key) for key in logged), metric


def test_the_measured_table_is_what_the_evaluations_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    interquartile = script("plot").interquartile
    measured = json.loads((ROOT / "docs" / "results" / "conflict_probe.json").read_text())
    lines = {row[0].strip("`"): row[1:] for row in table("`name=`")}
    assert {*lines} == {*measured}
    for name, (finals, iqm) in lines.items():
        values = [measured[name][str(seed)]["eval/return_mean"][-1] for seed in range(5)]
        assert finals == ", ".join(f"{value:.2f}" for value in values)
        mean, low, high = (float(bound[0]) for bound in interquartile(np.array(values)[:, None]))
        assert iqm == f"{mean:.2f} [{low:.2f}, {high:.2f}]"
    best = [max(measured["weighted_sum"][str(seed)]["eval/return_mean"]) for seed in range(5)]
    assert "its best evaluations are {:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*best) in PAGE


# Several processes


class Toy:
    """Two losses on some rows of a batch of 8, which conflict; the optimizer moves nothing."""

    def __init__(self, rule, level, rows, reduce=None):
        torch.manual_seed(0)
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
        trunk, heads = nn.Linear(4, 3).double(), nn.ModuleDict({name: nn.Linear(3, 1).double() for name in ("a", "b")})
        heads["b"].weight.data = -heads["a"].weight.data  # so that equal targets pull against each other
        self.aggregator = rule(level=level, shared=trunk.parameters())
        if reduce is not None:
            self.aggregator.reduce = reduce
        aliases = self.aggregator.fan_out(torch.tanh(trunk(x[rows])), heads)
        targets = {"a": 2 * y[rows], "b": 5 * y[rows]}
        losses = {name: nn.functional.mse_loss(heads[name](aliases[name]), targets[name]) for name in heads}
        self.losses = TensorDict(losses)
        self.parameters = [*trunk.parameters(), *heads.parameters()]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.0)

    def gradients(self):
        return [parameter.grad for parameter in self.parameters]


def _rank(rank, level, file, page):
    signal.alarm(60)  # whoever waits for a process that has died dies, too
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    toy = Toy(page["UPGrad"], level, slice(4 * rank, 4 * rank + 4), page["over_processes"])
    page["update"](toy.aggregator, toy.optimizer, toy.losses)
    torch.save(toy.gradients(), f"{file}_{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("level", ["features", "params"])
def test_two_processes_do_what_one_does_with_the_joined_batch(page, tmp_path, level):
    children = []
    for rank in range(2):
        if not (child := os.fork()):
            try:
                _rank(rank, level, tmp_path / "meeting", page)
            finally:
                os._exit(int(not (tmp_path / f"meeting_{rank}").exists()))
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    whole = Toy(page["UPGrad"], level, slice(0, 8))
    whole.aggregator.backward(whole.losses)
    halves = [Toy(page["UPGrad"], level, rows) for rows in (slice(0, 4), slice(4, 8))]
    for half in halves:  # each by its own inner products
        half.aggregator.backward(half.losses)
    mean = (halves[0].gradients()[0] + halves[1].gradients()[0]) / 2
    assert not torch.allclose(mean, whole.gradients()[0], rtol=1e-3)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"meeting_{rank}"), whole.gradients(), rtol=0, atol=1e-12)
