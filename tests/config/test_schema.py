from copy import deepcopy
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mhrl.config import SCHEMA, ConfigError, Group, check_config, register

CONFIGS = Path(__file__).parents[2] / "configs"
REST = 2**63


def composed(*overrides):
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return OmegaConf.to_container(compose("train", overrides=list(overrides)), resolve=True)


@pytest.fixture(scope="module")
def whole():
    return composed("+experiment=ddpg")


def leaves(fields, path=()):
    """`{path: annotation}` of every key that mhrl itself reads."""
    for name, expected in fields.items():
        below = expected.fields if isinstance(expected, Group) else expected
        if isinstance(below, dict):
            yield from leaves(below, (*path, name))
        else:
            yield (*path, name), expected


def changed(config, path, value):
    config = deepcopy(config)
    node = config
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = value
    return config


def at(config, path):
    for name in path:
        config = config[name]
    return config


LEAVES = dict(leaves(SCHEMA))
INTEGERS = [
    "total_frames", "learning_starts", "batch_size", "num_envs", "seed", "threads", "collector.frames_per_rollout",
    "eval.every", "eval.episodes", "checkpoint.every", "checkpoint.keep_last", "log.every", "objective.bins",
]  # fmt: skip
NUMBERS = ["utd_ratio", "trunk.lr", "optimizer.lr", "optimizer.clip_norm", "env.step_timeout"]
TRUTHS = ["trust_config", "dry_run", "eval.video", "wandb.histograms", "wandb.artifacts", "objective.twin"]
TEXTS = [
    "name",
    "device",
    "run_dir",
    "resume",
    "wandb.project",
    "wandb.dir",
    "wandb.entity",
    "wandb.notes",
    "env.action_mask",
]
CHOICES = [
    "engine", "precision", "on_nonfinite", "wandb.mode", "wandb.watch", "env.vectorization_mode", "objective.dueling",
    "optimizer.clip_scope",
]  # fmt: skip
NULLABLE = {
    "run_dir", "resume", "checkpoint.keep_last", "wandb.entity", "wandb.notes", "trunk.lr", "optimizer.clip_norm",
    "heads", "losses", "env.kwargs", "objective.bins",
}  # fmt: skip
MAPPINGS = ["heads", "losses", "env.kwargs"]
KINDS = {
    "int": (INTEGERS, [1.5, True, "5", "abc", [1], {}, float("nan"), float("inf"), -1]),
    "float": (NUMBERS, [True, "1.5", "abc", [1.0], {}, float("nan"), float("inf"), -0.1]),
    "bool": (TRUTHS, [0, 1, "yes", [True], {}]),
    "text": (TEXTS, [5, 1.5, True, ["a"], {}]),
    "choice": (CHOICES, [5, "sometimes", True, []]),
    "list": (["wandb.tags"], ["tag", 5, [5], {}]),
    "mapping": (MAPPINGS, [5, "text", [1], True]),
}


def test_every_key_is_in_one_of_the_tables_below():
    assert sorted(key for keys, _ in KINDS.values() for key in keys) == sorted(map(".".join, LEAVES))


@pytest.mark.parametrize("kind", KINDS)
def test_e01_a_value_of_another_kind_is_refused_by_key(whole, kind):
    keys, wrong = KINDS[kind]
    for key in keys:
        for value in wrong + [None] * (key not in NULLABLE):
            with pytest.raises(ConfigError) as error:
                check_config(changed(whole, key.split("."), value))
            assert str(error.value).startswith(f"{key} is {value!r}: ")
            assert str(error.value).endswith(" is expected")


@pytest.mark.parametrize("key", sorted(NULLABLE))
def test_null_is_allowed_where_it_has_a_meaning(whole, key):
    found = at(check_config(changed(whole, key.split("."), None)), key.split("."))
    assert found == ({} if key in ("heads", "losses") else None)


@pytest.mark.parametrize("key", INTEGERS)
def test_1e6_is_an_int_for_an_integer_field(whole, key):
    found = at(check_config(changed(whole, key.split("."), 1e6)), key.split("."))
    assert found == 1_000_000 and type(found) is int


@pytest.mark.parametrize("key", NUMBERS)
def test_an_int_is_a_number_for_a_float_field(whole, key):
    found = at(check_config(changed(whole, key.split("."), 2)), key.split("."))
    assert found == 2.0 and type(found) is float


@pytest.mark.parametrize(
    ("key", "least"),
    [
        *((key, {"learning_starts": 0, "seed": 0, "objective.bins": 2}.get(key, 1)) for key in INTEGERS),
        ("utd_ratio", 0),
        ("optimizer.lr", 0),
    ],
)
def test_least_values_pass_and_lower_ones_do_not(whole, key, least):
    assert at(check_config(changed(whole, key.split("."), least)), key.split(".")) == least
    with pytest.raises(ConfigError, match=rf"^{key} is {least - 1}: a .*number >= {least}"):
        check_config(changed(whole, key.split("."), least - 1))


@pytest.mark.parametrize("key", ["optimizer.clip_norm", "env.step_timeout"])
def test_bounds_that_exclude_zero(whole, key):
    with pytest.raises(ConfigError, match=rf"^{key} is 0: a number > 0"):
        check_config(changed(whole, key.split("."), 0))


def test_a_seed_fits_torch(whole):
    assert check_config(changed(whole, ["seed"], REST - 1))["seed"] == REST - 1
    with pytest.raises(ConfigError, match=rf"seed is {REST}: a whole number >= 0 and < {REST} is expected"):
        check_config(changed(whole, ["seed"], REST))


@pytest.mark.parametrize("path", [path for path in LEAVES if path[0] not in ("env", "trunk", "optimizer", "objective")])
def test_e01_every_key_is_required_and_a_misspelling_names_it(whole, path):
    key, config = ".".join(path), deepcopy(whole)
    value = at(config, path[:-1]).pop(path[-1])
    with pytest.raises(ConfigError, match=rf"^{key} is missing$"):
        check_config(config)
    with pytest.raises(ConfigError, match=rf"^unknown key {key}_: did you mean {path[-1]}\?$"):
        check_config(changed(config, (*path[:-1], f"{path[-1]}_"), value))


@pytest.mark.parametrize("group", [name for name, field in SCHEMA.items() if isinstance(field, Group)])
@pytest.mark.parametrize("value", [5, "mlp", None, [1], True])
def test_a_group_is_a_mapping(whole, group, value):
    with pytest.raises(ConfigError, match=rf"^{group} is .*: a mapping is expected$"):
        check_config({**whole, group: value})


def test_names_of_heads_and_losses_become_text(whole):
    assert check_config({**whole, "heads": {1: {"lr": 1.0}}})["heads"] == {"1": {"lr": 1.0}}


def test_the_given_config_is_left_alone(whole):
    before = deepcopy(whole)
    check_config({**whole, "total_frames": 1e6})
    assert whole == before


@pytest.mark.parametrize("left", [{"total_frames": 777}, {}, 5])
def test_e02_a_leftover_experiment_node_is_refused_with_what_to_do(whole, left):
    with pytest.raises(ConfigError, match=r"^unknown key experiment.*`# @package _global_`.*add that line$"):
        check_config({**whole, "experiment": left})


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("experiment/*.yaml")), ids=lambda path: path.stem)
def test_e02_every_experiment_composes_without_leftovers_and_passes(path):
    config = composed(f"+experiment={path.stem}")
    assert "experiment" not in config and check_config(config)["name"] == path.stem
