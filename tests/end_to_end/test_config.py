"""The config check as a user meets it: what is refused by name before anything runs, and that no key is idle."""

import inspect
import re
from copy import deepcopy
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from mhrl import experiment, launch
from mhrl.config import (
    SCHEMA,
    ConfigError,
    Group,
    check_arguments,
    check_config,
    check_env,
    head_kinds,
    register,
)
from mhrl.envs import inspect_env
from mhrl.loggers import WandbLogger
from mhrl.resolve import HEAD_FIELDS, resolve_heads, resolve_losses

CONFIGS = Path(__file__).parents[2] / "configs"
GROUPS = [name for name, field in SCHEMA.items() if isinstance(field, Group) and name != "env"]
SMALL = ("total_frames=40", "learning_starts=20", "eval.episodes=1", "batch_size=8", "wandb.mode=disabled")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("trunk.widths=64", "trunk.widths is 64: a list of whole numbers is expected"),
        ("trunk.widths=[0.5]", "trunk.widths is [0.5]: a list of whole numbers is expected"),
        ("trunk.activation=rleu", "trunk.activation is 'rleu': relu, tanh, elu, silu, gelu or leaky_relu is expected"),
        ("++trunk.widht=[8]", "unknown key trunk.widht: did you mean widths?"),
        ("heads.actor.widths=8", "heads.actor.widths is 8: a list of whole numbers is expected"),
        ("heads.value.layer_norm=yes", "heads.value.layer_norm is 'yes': true or false is expected"),
        ("losses.actor.weight=true", "losses.actor.weight is True: a number is expected"),
        ("optimizer.betas=0.9", "optimizer.betas is 0.9: a list of 2 numbers is expected"),
        ("optimizer.lr=fast", "optimizer.lr is 'fast': a number >= 0 is expected"),
        ("objective.target_every=1.5", "objective.target_every is 1.5: a whole number is expected"),
        ("objective.loss_function=l3", "objective.loss_function is 'l3': l1, l2, huber or smooth_l1 is expected"),
        ("objective._target_=mhrl.objectives.DDGP", "objective._target_=mhrl.objectives.DDGP cannot be imported"),
        ("++aggregator.network=1", "unknown key aggregator.network"),
        ("~replay.capacity", "replay.capacity is missing: a whole number"),
        ("replay.capacity=abc", "replay.capacity is 'abc': a whole number"),
        ("++exploration.sdt=1", "unknown key exploration.sdt: did you mean std?"),
        ("env.kwargs.g_=5", "unknown key env.kwargs.g_: did you mean g?"),
        ("+env.kwargs.gravty=5", "unknown key env.kwargs.gravty: choose from"),
        ("env.id=Pendulum-v9", "env.id is 'Pendulum-v9': Pendulum-v1 is expected"),
        ("env.id=Pendulm-v1", "env.id is 'Pendulm-v1', which is no registered env: did you mean Pendulum-v1"),
        ("env.vectorization_mode=asnyc", "env.vectorization_mode is 'asnyc': sync or async is expected"),
        ("on_nonfinite=eror", "on_nonfinite is 'eror': error or skip is expected"),
        (
            "wandb.tags=a",
            "wandb.tags is 'a': a list of texts of at least 1 characters and",
        ),
        ("checkpoint.keep_last=0", "checkpoint.keep_last is 0: a whole number >= 1 or null is expected"),
        ("eval.video=1", "eval.video is 1: true or false is expected"),
        ("total_frames=1.5e0", "total_frames is 1.5: a whole number >= 1 is expected"),
        ("+experiment.total_frames=5", "unknown key experiment"),
    ],
)
def test_e01_what_cannot_be_is_refused_before_a_folder_exists(train, tmp_path, overrides, message):
    with pytest.raises(ConfigError) as error:
        train("+experiment=ddpg_shared_trunk", *overrides.split())
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_whole_floats_and_whole_numbers_for_floats_train(train):
    given = ["total_frames=4e1", "learning_starts=2e1", "batch_size=8.0", "replay.capacity=1e3", "optimizer.lr=0"]
    run = train("+experiment=ddpg_shared_trunk", *SMALL[2:3], *given, "trunk.widths=[8.0]", "heads.actor.widths=[4.0]")
    assert run.info["frames"] == 40 and run.info["updates"] == 20
    config = run.checkpoint()["config"]
    assert config["total_frames"] == 40 and type(config["total_frames"]) is int
    assert config["heads"]["actor"]["widths"] == [4] and type(config["heads"]["actor"]["widths"][0]) is int


def composed(*overrides):
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = OmegaConf.to_container(compose("train", overrides=list(overrides)), resolve=True)
        return config, head_kinds()


def check_all(config, kinds, actions):
    """The checks of a run that need no torch objects; `actions` are the leaves of its env's action space."""
    config = check_config(config)
    check_env(config["env"])
    for group in GROUPS:
        signature_only(config[group], group)
    needed = {name: config["objective"][name] for name in ("bins", "dueling")}
    heads = resolve_heads(config["heads"], actions, kinds, **needed)
    for name, head in heads.items():
        where = f"heads.{name}.exploration"
        signature_only({**config["exploration"], **head["exploration"]}, "exploration", where)
    resolve_losses(config["losses"], list(heads), [], 1.0, heads)


def signature_only(node, group, where=None):
    """Check a node's names and values; what mhrl injects is the business of the builder."""
    try:
        check_arguments(node, where or group, also=SCHEMA[group].fields)
    except ConfigError as error:
        if not str(error).endswith("is missing") and " is missing: " not in str(error):
            raise


def leaves(node, path=()):
    """Paths of everything in `node` that is no mapping, but `_target_`s and names that the user makes up."""
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        elif name not in ("_target_", "heads", "losses", "kwargs", "schedules"):
            yield (*path, name)


def replaced(config, path, name=None, value=None):
    """A copy of `config` with another name for the entry at `path`, or another value in it."""
    config = deepcopy(config)
    node = config
    for key in path[:-1]:
        node = node[key]
    old = node.pop(path[-1])
    node[name or path[-1]] = old if value is None else value
    return config


def refusal(check, *arguments):
    with pytest.raises(ConfigError) as error:
        check(*arguments)
    return str(error.value)


def by_leaf(said):
    """A refusal in which the first branch of a leaf bears the leaf's name, under which it was listed."""
    return re.sub(r"heads\.(lights|action)_0\.", r"heads.\1.", said)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("experiment/*.yaml")))
def test_e01_every_key_of_every_experiment_is_known_and_judged(name):
    config, kinds = composed(f"+experiment={name}")
    actions = inspect_env(*check_env(config["env"]))[0].actions
    check_all(config, kinds, actions)
    for path in leaves(config):
        key = ".".join(path)
        said = by_leaf(refusal(check_all, replaced(config, path, name=f"{path[-1]}_"), kinds, actions))
        assert f"unknown key {key}_: did you mean " in said or f"{key} is missing" in said
        said = by_leaf(refusal(check_all, replaced(config, path, value={"no": "such"}), kinds, actions))
        assert f"{key} is {{'no': 'such'}}" in said


CHOICES = [(path.parent.name, path.stem) for path in sorted(CONFIGS.glob("*/*.yaml"))]


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g, n in CHOICES if g in (*GROUPS, "env", "head")], ids=lambda part: part
)
def test_e01_every_key_of_every_group_is_an_argument_or_mhrls_own(group, name):
    config, kinds = composed(*([] if group == "head" else [f"{group}={name}"]))
    node = kinds[name] if group == "head" else config[group]

    def check(node):
        if group == "env":
            check_env(node)
        elif group == "head":
            check_arguments(node, "head", injected=("in_features", "space"), also=HEAD_FIELDS)
        else:
            signature_only(node, group)

    check(node)
    for path in leaves(node):
        key = ".".join((group, *path))
        said = refusal(check, replaced(node, path, name=f"{path[-1]}_"))
        assert f"unknown key {key}_: did you mean " in said or f"{key} is missing" in said
        assert f"{key} is {{'no': 'such'}}" in refusal(check, replaced(node, path, value={"no": "such"}))


class Recorder(dict):
    """Remembers the dotted keys that were read one by one; going through all of them, as saving does, is no reading."""

    def __init__(self, values, read, path=()):
        nested = {k: Recorder(v, read, (*path, k)) if isinstance(v, dict) else v for k, v in values.items()}
        super().__init__(nested)
        self.read, self.path = read, path

    def __getitem__(self, name):
        self.read.add(".".join((*self.path, name)))
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.read.add(".".join((*self.path, name)))
        return super().get(name, default)


def own_keys(fields, path=()):
    """Every key that mhrl itself reads."""
    for name, expected in fields.items():
        below = expected.fields if isinstance(expected, Group) else expected
        if isinstance(below, dict) and below:
            yield from own_keys(below, (*path, name))
        else:
            yield ".".join((*path, name))


def plain(value):
    return {name: plain(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def test_e01_every_key_of_the_root_is_read_by_a_run(train, monkeypatch):
    first, read = train("+experiment=ddpg_shared_trunk", *SMALL), set()
    check, to_container, create = launch.check_config, OmegaConf.to_container, OmegaConf.create
    monkeypatch.setattr(launch, "check_config", lambda config: Recorder(check(plain(config)), read))
    monkeypatch.setattr(OmegaConf, "to_container", lambda *a, **k: Recorder(to_container(*a, **k), read))
    monkeypatch.setattr(experiment, "dict", lambda config: config, raising=False)  # a copy would read in secret
    monkeypatch.setattr(OmegaConf, "create", lambda *a, **k: create(*map(plain, a), **k))  # saves the whole config
    train("+experiment=ddpg_shared_trunk", *SMALL)
    train(f"resume={first.path}", "total_frames=60")
    passed_on = {f"wandb.{name}" for name in inspect.signature(WandbLogger).parameters} | {"env.kwargs"}
    assert sorted(set(own_keys(SCHEMA)) - read - passed_on) == []


USERS = {
    "values": "total_frames: 777\n",
    "group": "defaults: [override /trunk: mlp]\ntotal_frames: 777\n",
    "twice": "# @package _global_\ndefaults: [/trunk: mlp]\n",
    "typo": "# @package _global_\ndefaults: [override /trunk: mlp]\ntrunk: {widhts: [64]}\n",
    "good": "# @package _global_\ndefaults: [override /trunk: mlp]\ntrunk: {widths: [4]}\noptimizer: {lr: 3e-4}\n",
}


@pytest.fixture
def users(tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    for name, text in USERS.items():
        (tmp_path / "mine" / "experiment" / f"{name}.yaml").write_text(text)
    return tmp_path / "mine"


def test_e02_the_command_line_wins_over_an_experiment_and_groups_switch(users):
    def resolved(*overrides):
        register()
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            config = compose("train", overrides=[f"hydra.searchpath=[file://{users}]", "+experiment=good", *overrides])
        return check_config(OmegaConf.to_container(config, resolve=True))

    assert resolved()["trunk"]["widths"] == [4] and resolved()["optimizer"]["lr"] == 3e-4
    assert resolved("optimizer.lr=0.5")["optimizer"]["lr"] == 0.5
    assert resolved("trunk=cnn")["trunk"]["_target_"] == "mhrl.trunks.CNNTrunk"
    assert resolved("trunk=cnn")["optimizer"]["lr"] == 3e-4


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("experiment=ddpg", "To append to your default list use +experiment=ddpg"),
        ("+experiment=ddgp", "Available options in 'experiment':\n\tbdq\n"),
        ("+experiment=group", "Did you mean to override trunk?"),
        ("+experiment=twice", "use 'override trunk: mlp'"),
    ],
)
def test_e02_hydra_says_what_to_type(users, override, said):
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"), pytest.raises(ConfigCompositionException) as error:
        compose("train", overrides=[f"hydra.searchpath=[file://{users}]", override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("experiment=ddpg", "use +experiment=ddpg"),
        ("--config-dir mine +experiment=values", "`# @package _global_`"),
        ("--config-dir mine +experiment=typo", "unknown key trunk.widhts: did you mean widths?"),
    ],
)
def test_e02_a_faulty_experiment_ends_with_1_one_message_and_nothing_left(users, shell, arguments, said):
    result = shell(f"python train.py {arguments}")
    assert result.returncode == 1 and said in result.stderr and "Traceback" not in result.stderr
    assert list(users.parent.iterdir()) == [users]
