import numpy as np
import pytest
from gymnasium.spaces import Box

from mhrl.config import ConfigError
from mhrl.envs import Leaf
from mhrl.resolve import resolve_heads, resolve_losses

KINDS = {
    "deterministic": {"_target_": "mhrl.heads.DeterministicHead", "widths": [256, 256], "activation": "relu"},
    "critic": {"_target_": "mhrl.heads.QHead", "widths": [256, 256], "activation": "relu"},
}


def leaf(name, *shape):
    return Leaf(name, name, Box(-1, 1, shape, np.float32))


ACTION = (leaf("action", 3),)
TWO = (leaf("arm", 3), leaf("gripper", 2))


def heads(listed=None, actions=ACTION):
    return resolve_heads(listed or {}, actions, KINDS)


def places(listed=None, actions=ACTION):
    return {name: (head["leaf"], head["dims"]) for name, head in heads(listed, actions).items() if name != "value"}


def test_heads_that_are_not_listed_are_named_after_their_leaf():
    assert places() == {"action": ("action", [0, 1, 2])}
    assert places(actions=TWO) == {"arm": ("arm", [0, 1, 2]), "gripper": ("gripper", [0, 1])}
    assert list(heads(actions=TWO)) == ["arm", "gripper", "value"]


def test_what_is_listed_is_merged_over_the_derived_head():
    found = heads({"gripper": {"widths": [8], "lr": 1e-4}, "value": {"widths": [16]}}, TWO)
    assert list(found) == ["gripper", "arm", "value"]
    assert found["gripper"] == {
        "kind": "deterministic",
        "_target_": "mhrl.heads.DeterministicHead",
        "leaf": "gripper",
        "dims": [0, 1],
        "in_keys": ["features"],
        "lr": 1e-4,
        "exploration": {},
        "widths": [8],
        "activation": "relu",
    }
    assert found["arm"]["widths"] == [256, 256] and found["arm"]["lr"] is None
    assert found["value"]["widths"] == [16] and found["value"]["kind"] == "critic"


def test_null_is_an_empty_head():
    assert places({"actor": None}) == {"actor": ("action", [0, 1, 2])}


def test_heads_on_parts_of_a_leaf():
    listed = {"back": {"leaf": "action", "dims": [2, 0]}, "front": {"dims": [1]}}
    assert places(listed) == {"back": ("action", [2, 0]), "front": ("action", [1])}


def test_a_leaf_of_several_axes_is_counted_row_major():
    assert places(actions=(leaf("action", 2, 2),)) == {"action": ("action", [0, 1, 2, 3])}
    assert places(actions=(leaf("action"),)) == {"action": ("action", [0])}


def test_the_users_config_and_the_defaults_are_left_alone():
    listed = {"actor": {"widths": [8]}}
    found = heads(listed)
    found["actor"]["lr"] = 5
    assert listed == {"actor": {"widths": [8]}}
    assert "lr" not in KINDS["deterministic"] and KINDS["deterministic"]["widths"] == [256, 256]


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("observation", ["observation"]),
        (["observation", "features"], ["features", "observation"]),
        (["features"], ["features"]),
    ],
)
def test_in_keys_in_one_order(given, right):
    assert heads({"actor": {"in_keys": given}})["actor"]["in_keys"] == right


@pytest.mark.parametrize(
    ("listed", "actions", "message"),
    [
        ({"actor": {"widht": [8]}}, ACTION, r"unknown key heads.actor.widht: did you mean widths\?"),
        ({"actor": {"lrr": 1}}, ACTION, r"unknown key heads.actor.lrr: did you mean lr\?"),
        ({"actor": {"in_features": 8}}, ACTION, r"unknown key heads.actor.in_features"),
        ({"value": {"layernorm": True}}, ACTION, r"unknown key heads.value.layernorm: did you mean layer_norm\?"),
        ({"actor": {"zzz": 1}}, ACTION, r"unknown key heads.actor.zzz: choose from .*widths"),
        ({"actor": 5}, ACTION, r"heads.actor is 5: a mapping of fields is expected"),
        ({"value": [1]}, ACTION, r"heads.value is \[1\]: a mapping of fields is expected"),
        (
            {"actor": {"kind": "determinstic"}},
            ACTION,
            r"heads.actor.kind is 'determinstic'.*did you mean deterministic\?",
        ),
        ({"actor": {"kind": {"no": "such"}}}, ACTION, r"heads.actor.kind is {'no': 'such'}: text is expected"),
        ({"actor": {"_target_": "no.such.Head"}}, ACTION, r"heads.actor._target_=no.such.Head cannot be imported"),
        ({"actor": {"dims": [3]}}, ACTION, r"heads.actor.dims is \[3\]: a list of dimensions 0 to 2"),
        ({"actor": {"dims": [-1]}}, ACTION, r"heads.actor.dims is \[-1\]: a list of dimensions 0 to 2"),
        ({"actor": {"dims": []}}, ACTION, r"heads.actor.dims is \[\]"),
        ({"actor": {"dims": 0}}, ACTION, r"heads.actor.dims is 0"),
        ({"actor": {"dims": [True]}}, ACTION, r"heads.actor.dims is \[True\]"),
        ({"actor": {"dims": [1.5]}}, ACTION, r"heads.actor.dims is \[1.5\]: a list of whole numbers or null"),
        ({"actor": {"leaf": 5}}, ACTION, r"heads.actor.leaf is 5: text or null is expected"),
        ({"actor": {"widths": 64}}, ACTION, r"heads.actor.widths is 64: a list of whole numbers is expected"),
        ({"actor": {"widths": [0.5]}}, ACTION, r"heads.actor.widths is \[0.5\]: a list of whole numbers is expected"),
        ({"actor": {"activation": "rleu"}}, ACTION, r"heads.actor.activation is 'rleu': relu, tanh, .* is expected"),
        ({"actor": {"layer_norm": 1}}, ACTION, r"heads.actor.layer_norm is 1: true or false is expected"),
        ({"actor": {"exploration": 0.5}}, ACTION, r"heads.actor.exploration is 0.5: a mapping of fields or null"),
        ({"actor": {"dims": [0, 1, 1, 2]}}, ACTION, r"dimension 1 of action leaf 'action' is covered twice"),
        ({"actor": {"dims": [0, 2]}}, ACTION, r"no head covers dimension 1 of action leaf 'action'"),
        ({"a": {"dims": [0, 1]}, "b": {"dims": [1, 2]}}, ACTION, r"dimension 1 of .* twice, by heads 'a' and 'b'"),
        ({"actor": {}, "aktor": {}}, ACTION, r"dimension 0 of .* 'actor' and 'aktor'.*misspelt head"),
        ({"grip": {"lr": 1}}, TWO, r"heads.grip.leaf is missing: did you mean gripper\?"),
        ({"x": {"leaf": "griper"}}, TWO, r"heads.x.leaf is 'griper', which is no action leaf: did you mean gripper\?"),
        ({"actor": {"in_keys": []}}, ACTION, r"heads.actor.in_keys is \[\]: a list of features and observation"),
        ({"actor": {"in_keys": ["feature"]}}, ACTION, r"heads.actor.in_keys is \['feature'\]"),
        ({"actor": {"in_keys": ["features", "features"]}}, ACTION, r"heads.actor.in_keys is"),
        ({"value": {"dims": [0]}}, ACTION, r"heads.value.dims"),
        ({"value": {"leaf": "action"}}, ACTION, r"heads.value.leaf"),
        ({"value": {"exploration": {"std": 1}}}, ACTION, r"heads.value.exploration"),
    ],
)
def test_what_cannot_be_is_refused_by_key(listed, actions, message):
    with pytest.raises(ConfigError, match=message):
        heads(listed, actions)


@pytest.mark.parametrize("bad", [3, [["features"]], {"features": 1, "x": 2}, None])
def test_in_keys_of_another_type_are_refused_too(bad):
    with pytest.raises(ConfigError, match=r"heads.actor.in_keys"):
        heads({"actor": {"in_keys": bad}})


def test_a_resolved_config_resolves_to_itself():
    listed = {"grip": {"leaf": "gripper", "dims": [1, 0], "in_keys": "observation"}, "value": {"widths": [4]}}
    once = heads(listed, TWO)
    assert heads(once, TWO) == once
    factors = losses({"arm": {"weight": 2}}, acting=0.0)
    assert losses(factors) == factors


def losses(listed=None, acting=1.0):
    return resolve_losses(listed or {}, ["arm", "gripper", "value"], acting)


def test_losses_have_weight_one_and_the_trunks_factor():
    one = {"weight": 1.0, "trunk_grad": 1.0}
    assert losses() == {"arm": one, "gripper": one, "value": one}
    assert losses(acting=0.0) == {
        "arm": {"weight": 1.0, "trunk_grad": 0.0},
        "gripper": {"weight": 1.0, "trunk_grad": 0.0},
        "value": one,
    }


def test_listed_factors_win():
    found = losses({"arm": {"weight": 2}, "gripper": {"trunk_grad": 0.5}, "value": None}, acting=0.0)
    assert found["arm"] == {"weight": 2.0, "trunk_grad": 0.0}
    assert found["gripper"] == {"weight": 1.0, "trunk_grad": 0.5}
    assert type(found["arm"]["weight"]) is float


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ({"griper": {"weight": 1}}, r"unknown loss losses.griper: did you mean gripper\?"),
        ({"actor": {"weight": 1}}, r"unknown loss losses.actor"),
        ({"arm": {"wieght": 1}}, r"unknown key losses.arm.wieght: did you mean weight\?"),
        ({"arm": 2}, r"losses.arm is 2: a mapping of fields is expected"),
        ({"arm": {"weight": "1"}}, r"losses.arm.weight is '1': a number is expected"),
        ({"arm": {"weight": True}}, r"losses.arm.weight is True: a number is expected"),
        ({"arm": {"weight": None}}, r"losses.arm.weight is None: a number is expected"),
        ({name: {"weight": 0} for name in ("arm", "gripper", "value")}, r"every loss has weight 0"),
    ],
)
def test_losses_that_cannot_be_are_refused_by_key(listed, message):
    with pytest.raises(ConfigError, match=message):
        losses(listed)
