import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from mhrl.envs import CanonicalEnv, Leaf, observation_leaves
from mhrl.envs.probe import Counter

VECTOR = Box(-1, 1, (2,), np.float64)
IMAGE = Box(0, 255, (3, 8, 8), np.uint8)


@pytest.mark.parametrize("space", [VECTOR, IMAGE, Box(0, 9, (1,), np.int64), Box(0, 1, (2,), np.bool_), Discrete(5)])
def test_one_observation_leaf(space):
    assert observation_leaves(space) == (Leaf("observation", "observation", space),)


def test_nested_dict_leaves():
    space = Dict({"camera": IMAGE, "arm": Dict({"q": VECTOR, "mode": Discrete(3)})})
    assert observation_leaves(space) == (
        Leaf("arm_mode", ("observation", "arm_mode"), Discrete(3)),
        Leaf("arm_q", ("observation", "arm_q"), VECTOR),
        Leaf("camera", ("observation", "camera"), IMAGE),
    )


@pytest.mark.parametrize("nested", [Dict(only=VECTOR), Dict([("b", Dict(z=VECTOR)), ("a", IMAGE), ("b_a", VECTOR)])])
def test_canonical_env_has_the_same_leaves(nested):
    env = Counter(3)
    env.observation_space = nested
    canonical = CanonicalEnv(env)
    assert canonical.spaces.observations == canonical.spaces.seen == observation_leaves(nested)
    assert list(canonical.observation_space.items()) == [(leaf.name, leaf.space) for leaf in canonical.spaces.seen]


def test_the_order_of_keys_means_nothing():
    parts = [("b", Dict([("z", VECTOR), ("c", IMAGE)])), ("b_a", Discrete(2)), ("a", Discrete(3))]
    inner = ("b", Dict([("c", IMAGE), ("z", VECTOR)]))
    leaves = observation_leaves(Dict(parts))
    assert [leaf.name for leaf in leaves] == ["a", "b_c", "b_z", "b_a"]  # sorted by path: b.z, then b_a
    assert observation_leaves(Dict([parts[1], parts[2], inner])) == leaves


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Dict(), ["observation", "empty"]),
        (Dict(a=VECTOR, b=Dict()), ["observation.b", "empty"]),
        (Dict(a=Dict(b=VECTOR), a_b=VECTOR), ["observation.a_b", "'a_b'"]),
        (Box(-1, 1, (0,)), ["observation", "Box([], [], (0,), float32)"]),
        (Dict(a=Box(-1, 1, (2, 0))), ["observation.a", "(2, 0)"]),
        (MultiDiscrete([3, 2]), ["observation", "MultiDiscrete([3 2])"]),
        (Dict(a=Tuple([VECTOR])), ["observation.a", "Tuple("]),
    ],
)
def test_b07_refused_observation_spaces(space, words):
    with pytest.raises(ValueError) as error:
        observation_leaves(space)
    assert [word for word in words if word not in str(error.value)] == []


def test_a09_unsigned_integers_become_the_next_wider_signed_type_and_others_are_refused():
    space = Dict(a=Box(0, 65535, (2,), np.uint16), b=Box(0, 2**32 - 1, (1,), np.uint32))
    a, b = observation_leaves(space)
    assert a.space == Box(0, 65535, (2,), np.int32) and b.space == Box(0, 2**32 - 1, (1,), np.int64)
    with pytest.raises(ValueError, match=r"observation: dtype uint64 is not supported"):
        observation_leaves(Box(0, 9, (2,), np.uint64))
