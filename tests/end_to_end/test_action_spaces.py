"""Any action space through all of it: heads, acting, an update, a checkpoint, and the env's own types."""

from collections import Counter
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
import toy_envs
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Tuple
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from mhrl.assembly import Assembly
from mhrl.checkpoint import load_checkpoint, save_checkpoint
from mhrl.cli import CONFIGS
from mhrl.config import head_kinds, register
from mhrl.loading import load_run

RECORDER = ("env._target_=toy_envs.Recorder", "~env.id", "+env.space=tested")
TINY = ("trunk=mlp", "trunk.widths=[4]", "batch_size=4", "replay.capacity=32", "num_envs=2", "eval.episodes=1")


@cache
def composed(*overrides):
    """The config as plain values, and the kinds of heads, with narrow layers."""
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides=[*overrides, "wandb.mode=disabled"]), resolve=True)
        kinds = {kind: {**defaults, "widths": [4]} for kind, defaults in head_kinds().items()}
    return config, kinds


def assembled(space, objective, seed):
    """A run with `heads: {}` on a `Recorder` with this action space."""
    config, kinds = composed(*TINY, *RECORDER, "total_frames=12", "learning_starts=6")
    config = deepcopy(config)
    config["seed"] = seed
    config["objective"] |= objective
    config["exploration"] |= {"epsilon": 0.3}
    toy_envs.SPACES["tested"] = space
    return config, Assembly(config, kinds)


def backwards(space):
    """The same space with the keys of each Dict in the other order."""
    match space:
        case Dict():
            return Dict([(key, backwards(part)) for key, part in reversed(space.spaces.items())])
        case Tuple():
            return Tuple([backwards(part) for part in space.spaces])
    return space


def act(parts, observation):
    return {str(key): value for key, value in parts.policy.greedy.act({"observation": observation}).items()}


OBJECTIVES = st.fixed_dictionaries(
    {
        "bins": st.sampled_from([None, 2, 3]),
        "dueling": st.sampled_from(["none", "mean", "max"]),
        "twin": st.booleans(),
        "double": st.booleans(),
        "loss_reduction": st.sampled_from(["per_branch", "mean_q", "summed"]),
    }
)


def check(space, objective, file):
    """Collect, update once, save, load into another run whose Dicts are in the other order, and act alike."""
    config, parts = assembled(space, objective, seed=0)
    before = parts.network.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    toy_envs.Recorder.given.clear()
    for rollout in parts.collector:
        parts.replay.extend(parts.objective.process_rollout(rollout))
    assert len(toy_envs.Recorder.given) == 12
    for batch in parts.replay.batches(1):
        parts.learner.update(batch, 12)
    parts.check_finite()
    assert any(not value.equal(before[name]) for name, value in parts.network.state_dict().items())
    save_checkpoint(file, {"config": config, **parts.state_dict()})
    _, other = assembled(backwards(space), objective, seed=1)
    state = load_checkpoint(file, trust_config=True)
    assert other.load_state_dict(state, file) is None
    observation = torch.rand(16, 2) * 2 - 1
    expected, actual = act(parts, observation), act(other, observation)
    assert expected.keys() == actual.keys() and all(value.equal(actual[key]) for key, value in expected.items())
    for one in (parts, other):
        one.close()


@given(data=st.data())
@settings(max_examples=200)
def test_any_action_space_trains_and_comes_back(data, action_spaces, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "any.pt"
    check(data.draw(action_spaces), data.draw(OBJECTIVES), file)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=2_000)
def test_many_action_spaces_train_and_come_back(data, action_spaces, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "many.pt"
    check(data.draw(action_spaces), data.draw(OBJECTIVES), file)


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (Discrete(3), np.int64(1)),
        (MultiDiscrete([2, 3]), np.array([1, 1], np.int32)),
        (MultiDiscrete([2, 3]), [1, 1]),
        (Dict(a=Discrete(2), b=Discrete(2)), {"a": 1, "b": 1, "c": 1}),
        (Tuple([Discrete(2), Discrete(2)]), [0, 1]),
        (Discrete(3, start=1), 0),
    ],
)
def test_the_recorder_takes_native_types_only(space, wrong):
    assert not toy_envs.is_native(space, wrong)


ORDERED = (
    *("+experiment=hybrid_q", "env._target_=toy_envs.Ordered", "~env.length", "heads=null"),
    *("learning_starts=30", "batch_size=8", "trunk.widths=[8]", "eval.episodes=2", "replay.capacity=100", "num_envs=2"),
    "log.every=10",
)


def test_a_checkpoint_does_not_depend_on_the_order_of_keys(train, monkeypatch):
    whole = train(*ORDERED, "total_frames=100")
    part = train(*ORDERED, "total_frames=60")
    forwards, order = load_run(part.path, trust_config=True), list(toy_envs.Ordered().action_space)
    monkeypatch.setattr(toy_envs.Ordered, "backwards", True)
    other = load_run(part.path, trust_config=True)
    assert list(toy_envs.Ordered().action_space) == order[::-1]
    rng = np.random.default_rng(0)
    for _ in range(20):
        seen = {"near": rng.uniform(-1, 1, 2).astype(np.float32), "far": rng.uniform(-1, 1, 3).astype(np.float32)}
        expected, actual = forwards.act(seen)["action"], other.act(dict(reversed(seen.items())))["action"]
        assert all(np.array_equal(value, actual[name]) for name, value in expected.items())
    resumed = train(f"resume={part.path}", "total_frames=100", "trust_config=true").leaves()
    for name, value in whole.leaves().items():
        if torch.is_tensor(value) and "/snapshots/" not in name:  # these hold the spaces
            assert value.equal(resumed[name]), name


@pytest.mark.parametrize(
    ("space", "legal"),
    [
        (Discrete(3, start=-1), [{-1, 0, 1}]),
        (Discrete(1, start=2), [{2}]),
        (MultiDiscrete([3, 2], start=[5, -1]), [{5, 6, 7}, {-1, 0}]),
        (MultiDiscrete([1, 3]), [{0}, {0, 1, 2}]),
        (MultiDiscrete([[2], [2]]), [{0, 1}, {0, 1}]),
    ],
    ids=str,
)
def test_b07_every_legal_value_and_no_other_occurs(build, tmp_path, space, legal):
    toy_envs.SPACES["tested"] = space
    explore = ("exploration=epsilon_greedy", "exploration.epsilon=1", "utd_ratio=0.02", "heads.action.widths=[4]")
    frames = ("total_frames=4_000", "learning_starts=2_000", "eval.every=10_000", "replay.capacity=5_000")
    experiment = build(*TINY, *RECORDER, *explore, *frames, f"run_dir={tmp_path / 'run'}")
    toy_envs.Recorder.given.clear()
    experiment.run()
    given = toy_envs.Recorder.given
    assert {np.shape(action) for action in given} == {space.shape}
    for part in (given[:2_000], given[2_000:]):  # warm-up, and epsilon-greedy
        assert len(part) == 2_000
        columns = np.reshape(part, (2_000, -1)).T.tolist()
        for column, expected in zip(columns, legal, strict=True):
            assert set(column) == expected
            assert min(Counter(column).values()) > 0.85 * 2_000 / len(expected)
    assert experiment.parts.learner.updates == 40
    experiment.parts.check_finite()
