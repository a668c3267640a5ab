import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hydra import compose, initialize_config_dir

from mhrl.checkpoint import CheckpointError, save_checkpoint
from mhrl.config import register
from mhrl.envs import Leaf, make_factory
from mhrl.launch import run
from mhrl.loading import TrainedRun, evaluate_run, load_run


@pytest.fixture
def trained(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    register()
    overrides = ["+experiment=ddpg", "dry_run=true", "seed=5", f"run_dir={tmp_path / 'run'}"]
    with initialize_config_dir(str(request.config.rootpath / "configs"), version_base="1.3"):
        run(compose("train", overrides=overrides))
    return tmp_path / "run"


def test_a_run_comes_back_from_its_folder_or_from_a_checkpoint(trained):
    state = torch.load(trained / "checkpoints" / "last.pt", weights_only=True)["network"]
    for path in (trained, str(trained), trained / "checkpoints" / "best.pt"):
        loaded = load_run(path)
        found = loaded.policy.network.state_dict()
        assert found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)
    env = loaded.factory()
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(loaded.act(observation))


def test_a09_a_loaded_run_acts_inside_a_double_box(trained, monkeypatch):
    loaded = load_run(trained)
    leaf = Leaf("action", "action", Box(0.1, 0.3, (1,), np.float64))
    policy = type("Edge", (), {"act": lambda self, leaves: {"action": torch.tensor([[0.3]])}})()  # above 0.3 in double
    action = dataclasses.replace(loaded, policy=policy, action_leaves=(leaf,)).act(np.zeros(3, np.float32))
    assert leaf.space.contains(action)


class Hybrid(gymnasium.Env):
    """Only gear 6 is legal."""

    observation_space = Box(-9, 9, (1,))
    action_space = Dict(gear=Discrete(3, start=5), arm=Box(-1, 1, (2, 1)))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"action_mask": {"gear": [0, 1, 0]}}

    def step(self, action):
        assert self.action_space.contains(action) and action["gear"] == 6
        return np.zeros(1, np.float32), 0.0, True, False, {}


def test_b06_a_loaded_run_acts_with_several_leaves_and_masks():
    class Legal:
        def act(self, seen):
            assert {key: value.shape for key, value in seen.items()} == {
                "observation": (1, 1),
                ("action_mask", "gear"): (1, 3),
            }
            gear = 5 + seen["action_mask", "gear"].int().argmax(-1)
            return {("action", "gear"): gear, ("action", "arm"): torch.full((1, 2, 1), 7.0)}

    factory = make_factory(Hybrid, action_mask="info")
    env = factory()
    loaded = TrainedRun({}, Legal(), factory, env.spaces.seen, env.spaces.actions)
    action = loaded.act(env.reset()[0])
    assert env.action_space.contains(action)
    assert action["action"]["arm"].tolist() == [[1.0], [1.0]] and action["action"]["gear"] == 6
    env.step(action)
    native = env.native_action(action)
    assert env.env.action_space.contains(native) and type(native["gear"]) is int
    for bare in (np.zeros(1, np.float32), {"observation": np.zeros(1, np.float32)}):  # as the env inside returns it
        with pytest.raises(ValueError, match=r"a mapping with observation, action_mask_gear"):
            loaded.act(bare)


def test_evaluation_repeats_and_another_seed_differs(trained):
    first, again, other = (evaluate_run(trained, episodes=3, seed=seed) for seed in (None, 5, 6))
    assert first == again and len(first.returns) == 3
    assert first.returns != other.returns


def test_a_checkpoint_that_does_not_fit_its_config_is_refused_by_key(trained):
    path = trained / "checkpoints" / "last.pt"
    state = torch.load(path, weights_only=True)
    state["network"].pop("head_actor.body.0.weight")
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=r"(?s)last.pt: entry 'network' .*head_actor.body.0.weight"):
        load_run(path)


def test_neither_run_nor_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing_here does not exist"):
        load_run(tmp_path / "nothing_here")
