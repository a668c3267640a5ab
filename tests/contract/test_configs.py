"""Every YAML in configs/ is tested on arrival: a new file needs no new test to be composed, built and stepped."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import OmegaConf

from mhrl.aggregators import BackwardAggregator
from mhrl.config import head_kinds, register
from mhrl.experiment import Experiment
from mhrl.exploration import HeadNoise
from mhrl.heads import ActionHead, Head
from mhrl.normaliser import Normaliser
from mhrl.objectives import Objective
from mhrl.replay import Replay
from mhrl.trunks import Trunk

CONFIGS = Path(__file__).parents[2] / "configs"
ALL = [(path.parent.name, path.stem) for path in sorted(CONFIGS.glob("*/*.yaml"))]
KINDS = {
    "trunk": Trunk,
    "head": Head,
    "objective": Objective,
    "replay": Replay,
    "aggregator": BackwardAggregator,
    "optimizer": torch.optim.Optimizer,
    "exploration": HeadNoise,
    "normaliser": Normaliser,
}


def overrides_for(group, name):
    """What it takes to run a choice of a group on an env where it makes sense."""
    if group == "experiment":
        return [f"+experiment={name}"]
    if group == "head":
        target = compose(f"head/{name}").head._target_
        if issubclass(get_object(target), ActionHead):
            return ["+experiment=ddpg", f"heads.actor.kind={name}"]
        return ["+experiment=bdq", f"heads.action.kind={name}", f"heads.value.kind={name}"]
    if group == "env":  # whatever its action space
        return ["trunk=mlp", f"env={name}"]
    if (group, name) == ("trunk", "cnn"):
        pixels = ["env=bandit", "env._target_=tests_contract_envs.Images", "~env.target"]
        return ["+experiment=ddpg_shared_trunk", "trunk=cnn", *pixels]
    if (group, name) in (("aggregator", "dwa"), ("aggregator", "uncertainty")):  # they take no negative losses
        return ["+experiment=bdq", f"{group}={name}"]
    return ["+experiment=ddpg_shared_trunk", f"{group}={name}"]


@pytest.fixture
def build(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    register()
    built = []

    def build(group, name):
        small = [
            "wandb.mode=disabled",
            "total_frames=40",
            "learning_starts=20",
            "eval.episodes=1",
            "batch_size=8",
            "utd_ratio=1",
        ]
        small += [f"run_dir={tmp_path / 'run'}", "replay.capacity=100"]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            cfg = compose("train", overrides=[*overrides_for(group, name), *small])
            built.append(Experiment(OmegaConf.to_container(cfg, resolve=True), head_kinds()))
        return built[-1]

    yield build
    for experiment in built:
        experiment.close()


@pytest.mark.parametrize(("group", "name"), ALL, ids=["/".join(pair) for pair in ALL])
def test_it_trains_and_every_loss_moves_what_it_says(build, group, name):
    experiment = build(group, name)
    before = {key: value.clone() for key, value in experiment.parts.network.named_parameters()}
    experiment.run()
    assert experiment.parts.learner.updates == 20
    trained = {module for modules in experiment.parts.objective.routes.values() for module in modules}
    moved = {
        key.split(".")[0] for key, value in experiment.parts.network.named_parameters() if not before[key].equal(value)
    }
    assert moved == trained
    assert all(torch.isfinite(value).all() for value in experiment.parts.network.parameters())


@pytest.mark.parametrize(("group", "name"), [pair for pair in ALL if pair[0] in KINDS])
def test_its_target_is_what_the_group_holds(build, group, name):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        node = compose(f"{group}/{name}")[group]
    assert issubclass(get_object(node._target_), KINDS[group])
