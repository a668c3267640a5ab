"""Training over odd spaces: what is stored, what is refused, what stays finite."""

import sys

import numpy as np
import pytest
import torch

from mhrl.config import ConfigError

SMALL = ("+experiment=ddpg_shared_trunk", "total_frames=200", "learning_starts=50", "eval.episodes=1", "batch_size=16")


def toy(name):
    return (f"env._target_=toy_envs.{name}", "~env.id")


@pytest.mark.parametrize(
    ("env", "stored"),
    [
        ("Doubles", {"observation": torch.float64, "action": torch.float64}),
        ("Bytes", {"observation": torch.uint8, "action": torch.float32}),
        ("Category", {"observation": torch.int64, "action": torch.float32}),
        ("Integers", {"observation": torch.int64, "action": torch.float32}),
        ("Shorts", {("observation", "a"): torch.int32, ("observation", "b"): torch.int64}),
        (
            "Halves",
            {("observation", "a"): torch.float16, ("observation", "b"): torch.bool, ("observation", "c"): torch.int8},
        ),
        ("Pixels", {("observation", "img"): torch.uint8, ("observation", "vec"): torch.float64}),
    ],
)
def test_a09_every_dtype_trains_and_is_stored_as_it_is(build, tmp_path, env, stored):
    experiment = build(*SMALL, *toy(env), f"run_dir={tmp_path / 'run'}")
    experiment.run()
    batch = next(experiment.parts.replay.batches(1))
    for key, dtype in stored.items():
        assert batch[key].dtype == dtype
        following = ("next", key) if isinstance(key, str) else ("next", *key)
        assert key == "action" or batch[following].dtype == dtype
    assert all(torch.isfinite(p).all() and p.dtype == torch.float32 for p in experiment.parts.network.parameters())
    assert experiment.parts.learner.updates == 150


def test_a04_a_zero_width_dimension_is_a_constant(build, tmp_path):
    experiment = build(*SMALL, *toy("ZeroWidth"), f"run_dir={tmp_path / 'run'}", "total_frames=500")
    experiment.run()
    assert all(torch.isfinite(p).all() for p in experiment.parts.objective.parameters())
    for batch in experiment.parts.replay.batches(20):
        assert (batch["action"][:, 1] == 2.0).all()


@pytest.mark.parametrize(("env", "dimensions"), [("Unbounded", (0, 1)), ("HalfBounded", (1,))])
def test_a04_an_unbounded_action_is_refused_before_the_first_step(shell, tmp_path, env, dimensions):
    result = shell(f"python train.py +experiment=ddpg env._target_=toy_envs.{env} ~env.id")
    assert result.returncode == 1
    assert "Box(" in result.stderr
    assert "Traceback" not in result.stderr
    assert [f"dimension {i}" in result.stderr for i in (0, 1)] == [i in dimensions for i in (0, 1)]
    assert list(tmp_path.iterdir()) == []


def test_h02_a_nan_reward_ends_the_run_by_name(build, tmp_path):
    experiment = build(*SMALL, *toy("NanReward"), f"run_dir={tmp_path / 'run'}")
    with pytest.raises(ValueError, match=r"reward.*env 0|env 0.*reward"):
        experiment.run()
    assert len(experiment.parts.replay) == 0
    assert np.all([torch.isfinite(p).all() for p in experiment.parts.network.parameters()])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("heads.actor.lrr=1", "unknown key heads.actor.lrr: did you mean lr?"),
        ("heads.acter.lr=1", "covered twice, by heads 'actor' and 'acter'"),
        ("losses.actr.weight=2", "unknown loss losses.actr: did you mean actor?"),
        ("losses.actor.wieght=2", "unknown key losses.actor.wieght: did you mean weight?"),
        ("++objective.gama=1", "unknown key objective.gama: did you mean gamma?"),
        ("+total_framess=1", "unknown key total_framess: did you mean total_frames?"),
        ("++eval.episode=1", "unknown key eval.episode: did you mean episodes?"),
        ("trunk=cnn", "trunk cnn needs an image"),
        ("num_envs=0", "num_envs is 0"),
        ("objective.gamma=1.5", "objective.gamma is 1.5"),
        ("heads.actor.dims=[1]", "heads.actor.dims is [1]"),
        ("env.id=Pendulum-v9", "Pendulum"),
        ("device=cuda", "device=cuda is not available"),
        ("engine=fast", "engine is 'fast'"),
        ("wandb.mode=onlin", "onlin"),
        ("dry_run=maybe", "dry_run is 'maybe'"),
        ("name=5", "name is 5"),
        ("run_dir=5", "run_dir is 5"),
        ("device=null", "device is None"),
        ("device=meta", "device=meta is not available"),
        ("wandb.dir=null", "wandb.dir is None"),
        ("seed=9223372036854775808", "seed is 9223372036854775808"),
        ("~heads", "heads is missing"),
        ("~eval.every", "eval.every is missing"),
        ("~optimizer.lr", "optimizer.lr is missing"),
        ("objective.policy_delay=1.5", "objective.policy_delay is 1.5"),
        ("replay.capacity=1.5", "replay.capacity is 1.5"),
        ("exploration.anneal_frames=1.5", "exploration.anneal_frames is 1.5"),
        ("heads.actor.exploration=0.5", "heads.actor.exploration is 0.5"),
        ("heads.actor.lr=true", "heads.actor.lr is True"),
        ("optimizer.lr=inf", "optimizer.lr is inf"),
        ("optimizer.clip_norm=abc", "optimizer.clip_norm is 'abc'"),
        ("~env._target_", "env has no _target_"),
    ],
)
def test_bad_input_is_refused_by_name_and_leaves_nothing(train, tmp_path, override, message):
    with pytest.raises(ConfigError) as error:
        train("+experiment=ddpg", override)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("experiment", "module", "extra"),
    [
        ("ddpg_multi_head", "Box2D", "box2d"),
        ("ddpg_multi_head", "pygame", "box2d"),
        ("ddpg_halfcheetah", "mujoco", "mujoco"),
        ("ddpg_halfcheetah", "imageio", "mujoco"),
    ],
)
def test_a_missing_extra_is_named(train, monkeypatch, experiment, module, extra):
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'mhrl\[{extra}\]'"):
        train(f"+experiment={experiment}", "dry_run=true")
