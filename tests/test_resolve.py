import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from mhrl.config import ConfigError
from mhrl.envs import Leaf, action_leaves
from mhrl.resolve import resolve_heads, resolve_losses, values_of

KINDS = {
    "deterministic": {"_target_": "mhrl.heads.DeterministicHead", "widths": [256, 256], "activation": "relu"},
    "critic": {"_target_": "mhrl.heads.QHead", "widths": [256, 256], "activation": "relu"},
    "branch": {"_target_": "mhrl.heads.QHead", "widths": []},
}


def leaf(name, *shape):
    return Leaf(name, name, Box(-1, 1, shape, np.float32))


ACTION = (leaf("action", 3),)
TWO = (leaf("arm", 3), leaf("gripper", 2))


def heads(listed=None, actions=ACTION, **options):
    return resolve_heads(listed or {}, actions, KINDS, **options)


def places(listed=None, actions=ACTION, **options):
    found = heads(listed, actions, **options)
    return {name: (head["leaf"], head["dims"]) for name, head in found.items() if name != "value"}


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
        "bins": None,
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
        ({"actor": {"dims": [0, 1, 1, 2]}}, ACTION, r"heads.actor.dims is \[0, 1, 1, 2\]: .* each once"),
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
    return resolve_losses(listed or {}, ["arm", "gripper", "value"], ["arm", "gripper"], acting, heads(actions=TWO))


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


MIXED = action_leaves(
    Dict({"arm": Box(-1, 1, (2,)), "gear": Discrete(3, start=1), "lights": MultiDiscrete([[2, 4]]), "w": Box(0, 1, ())})
)


def test_a_discrete_leaf_gets_a_branch_for_each_of_its_dimensions():
    assert places(actions=MIXED) == {
        "arm": ("arm", [0, 1]),
        "gear": ("gear", [0]),
        "lights_0": ("lights", [0]),
        "lights_1": ("lights", [1]),
        "w": ("w", [0]),
    }
    found = heads(actions=MIXED)
    assert [found[name]["kind"] for name in found] == ["deterministic", "branch", "branch", "branch", "deterministic"]
    leaves = {one.name: one for one in MIXED}
    assert {name: values_of(head, leaves) for name, head in found.items()} == {
        **{"arm": 0, "gear": 3, "lights_0": 2, "lights_1": 4, "w": 0}
    }


def test_bins_cut_every_dimension_of_a_continuous_leaf():
    found = heads(actions=MIXED, bins=7)
    assert list(found) == ["arm_0", "arm_1", "gear", "lights_0", "lights_1", "w"]
    assert [found[name]["bins"] for name in found] == [7, 7, None, None, None, 7]
    one = heads({"arm": {"bins": 5}}, MIXED)
    assert [one[name]["bins"] for name in ("arm_0", "arm_1", "w")] == [5, 5, None] and one["w"][
        "kind"
    ] == "deterministic"
    kept = heads({"arm": {"bins": None}}, MIXED, bins=7)
    assert kept["arm"]["kind"] == "deterministic" and kept["w"]["bins"] == 7
    assert heads({"arm": {"kind": "deterministic"}}, MIXED, bins=7)["arm"]["bins"] is None


def test_what_is_listed_under_a_leaf_holds_for_its_branches_and_a_branchs_own_name_wins():
    found = heads({"lights": {"lr": 0.1, "widths": [8]}, "lights_1": {"lr": 0.2}}, MIXED)
    assert [found[name]["lr"] for name in ("lights_0", "lights_1")] == [0.1, 0.2]
    assert found["lights_1"]["widths"] == [8] and "lights" not in found
    swapped = heads({"lights_1": {"lr": 0.2}, "lights": {"lr": 0.1, "widths": [8]}}, MIXED)
    assert {name: swapped[name] for name in found} == found
    alone = heads({"lights_1": {"lr": 0.2}}, MIXED)
    assert [alone[name]["lr"] for name in ("lights_0", "lights_1")] == [None, 0.2]


def test_a_leaf_may_be_cut_in_part():
    leaf = action_leaves(Box(-1, 1, (3,)))
    listed = {"legs": {"dims": [2, 0], "bins": 5}, "arm": {"dims": [1]}}
    assert places(listed, leaf) == {"legs_2": ("action", [2]), "legs_0": ("action", [0]), "arm": ("action", [1])}
    assert places({"knee": {"dims": [1], "bins": 5}, "rest": {"dims": [0, 2]}}, leaf)["knee"] == ("action", [1])


def test_value_is_there_where_something_needs_it():
    assert "value" in heads() and "value" not in heads(actions=MIXED)
    assert "value" in heads(actions=MIXED, dueling="mean") and "value" in heads(dueling="none")


@pytest.mark.parametrize("options", [{}, {"bins": 7}, {"dueling": "max"}])
def test_resolved_branches_resolve_to_themselves(options):
    once = heads({"lights": {"lr": 0.1}, "arm": {"widths": [4]}}, MIXED, **options)
    assert heads(once, MIXED, **options) == once


@pytest.mark.parametrize(
    ("listed", "options", "message"),
    [
        ({"gear": {"bins": 5}}, {}, r"heads.gear.bins means nothing: action leaf 'gear' is discrete"),
        ({"gear": {"kind": "deterministic"}}, {}, r"heads.gear.kind is 'deterministic'.*'gear' is discrete: 'branch'"),
        ({"arm": {"kind": "branch"}}, {}, r"heads.arm_0.bins is None: into how many values"),
        ({"arm": {"bins": 1}}, {}, r"heads.arm_0.bins is 1: into how many values, at least 2"),
        ({"arm": {"bins": 2.5}}, {}, r"heads.arm.bins is 2.5: a whole number"),
        ({"arm": {"kind": "deterministic", "bins": 5}}, {}, r"heads.arm.bins means nothing to kind 'deterministic'"),
        ({"value": {"lr": 1}}, {}, r"heads.value: no loss would train it: the branches \(gear, lights_0, lights_1\)"),
        ({"light": {}}, {}, r"heads.light.leaf is missing: did you mean lights"),
        ({"lights_2": {}}, {}, r"heads.lights_2.leaf is missing: did you mean lights_1"),
    ],
)
def test_branches_that_cannot_be_are_refused_by_key(listed, options, message):
    with pytest.raises(ConfigError, match=message):
        heads(listed, MIXED, **options)


def test_a_leaf_called_value_needs_a_head_of_another_name():
    leaves = action_leaves(Dict({"value": Discrete(2), "x": Discrete(2)}))
    with pytest.raises(ConfigError, match=r"'value' has the name of the critic: list a head of another name"):
        heads(actions=leaves)
    assert places({"price": {"leaf": "value"}}, leaves) == {"price": ("value", [0]), "x": ("x", [0])}


def test_losses_listed_under_a_leaf_hold_for_all_its_heads():
    found = heads(actions=MIXED)
    names = ["arm", "w", "gear", "lights_0", "lights_1"]
    listed = {"lights_1": {"weight": 3}, "lights": {"weight": 2, "trunk_grad": 0.5}}
    losses = resolve_losses(listed, names, ["arm", "w"], 0.0, found)
    assert losses["lights_0"] == {"weight": 2.0, "trunk_grad": 0.5}
    assert losses["lights_1"] == {"weight": 3.0, "trunk_grad": 0.5}
    assert losses["gear"]["trunk_grad"] == 1.0 and losses["arm"]["trunk_grad"] == 0.0
    with pytest.raises(ConfigError, match=r"unknown loss losses.light: did you mean lights"):
        resolve_losses({"light": {}}, names, ["arm"], 1.0, found)


def test_leaves_whose_heads_would_share_a_name_are_refused_until_one_is_renamed():
    leaves = action_leaves(Dict({"lights": MultiDiscrete([2, 2]), "lights_0": Discrete(2)}))
    with pytest.raises(ConfigError, match=r"two heads would be called 'lights_0': list one of them under another name"):
        heads(actions=leaves)
    assert places({"main": {"leaf": "lights_0"}}, leaves)["main"] == ("lights_0", [0])


def test_one_branch_of_a_leaf_may_be_another_kind_and_resolves_to_itself():
    leaf = action_leaves(Box(-1, 1, (2,)))
    once = heads({"action": {"widths": []}, "action_1": {"kind": "deterministic", "bins": None}}, leaf, bins=11)
    assert [(name, once[name]["kind"], once[name]["bins"]) for name in once] == [
        ("action_0", "branch", 11),
        ("action_1", "deterministic", None),
    ]
    assert heads(once, leaf, bins=11) == once


def test_what_a_branch_explores_with_is_merged_over_what_its_leaf_says():
    listed = {"lights": {"exploration": {"std": 0.0}}, "lights_1": {"exploration": {"epsilon": 0.3}}}
    found = heads(listed, MIXED)
    assert found["lights_0"]["exploration"] == {"std": 0.0}
    assert found["lights_1"]["exploration"] == {"std": 0.0, "epsilon": 0.3}


def test_the_dimension_of_a_branch_that_a_leaf_makes_cannot_be_moved():
    with pytest.raises(ConfigError, match=r"heads.lights_1.dims means nothing: heads.lights makes it, for dimension 1"):
        heads({"lights": {}, "lights_1": {"dims": [0]}}, MIXED)


@given(data=st.data())
def test_whatever_resolves_resolves_to_itself(data):
    names = ["arm", "arm_0", "arm_1", "gear", "lights", "lights_0", "lights_1", "w", "x"]
    fields = st.fixed_dictionaries(
        {},
        optional={
            "kind": st.sampled_from(["branch", "deterministic"]),
            "bins": st.sampled_from([None, 3]),
            "leaf": st.sampled_from(["arm", "lights"]),
            "dims": st.sampled_from([[0], [1], [1, 0]]),
            "lr": st.just(0.1),
        },
    )
    listed = data.draw(st.dictionaries(st.sampled_from(names), fields, max_size=3))
    options = {"bins": data.draw(st.sampled_from([None, 5])), "dueling": data.draw(st.sampled_from(["none", "mean"]))}
    try:
        once = heads(listed, MIXED, **options)
    except ConfigError as error:
        assert str(error)
        return
    assert heads(once, MIXED, **options) == once
