import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.wrappers import TransformAction

from mhrl.envs import CanonicalEnv, Leaf, action_leaves, conform, observation_leaves
from mhrl.envs.probe import Counter

VECTOR = Box(-1, 1, (2,), np.float64)
IMAGE = Box(0, 255, (3, 8, 8), np.uint8)


def box(low, high, dtype=np.float32):
    return Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


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
    assert observation_leaves(CanonicalEnv(env).observation_space) == observation_leaves(nested)


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


@pytest.mark.parametrize("space", [VECTOR, Box(-1, 1, (2, 3), np.float32), Box(-1, 1, ()), box([-1, 2], [1, 2])])
def test_a04_bounded_boxes_have_one_action_leaf(space):
    assert action_leaves(space) == (Leaf("action", "action", space),)


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (Box(-np.inf, np.inf, (2,)), [0, 1]),
        (box([0], [np.inf]), [0]),
        (box([-np.inf], [0]), [0]),
        (box([-1, -1, -np.inf], [1, np.inf, 1]), [1, 2]),
        (box([[-1, 0], [0, -np.inf]], [[1, 1], [np.inf, 1]]), [2, 3]),
        (Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,)), [0]),
        (box([-1, -1e300], [1, 1e300], np.float64), [1]),
    ],
)
def test_a04_unbounded_dimensions_are_named(space, bad):
    with pytest.raises(ValueError) as error:
        action_leaves(space)
    named = [i for i in range(int(np.prod(space.shape))) if f"dimension {i} [" in str(error.value)]
    assert named == bad
    assert str(space) in str(error.value)
    assert "TransformAction" in str(error.value)


@pytest.mark.parametrize(("low", "high"), [([0, 1], [1, 0]), ([0, np.nan], [1, 1]), ([0, 0], [1, np.nan])])
def test_a04_swapped_and_nan_bounds(low, high):
    space = box([0, 0], [1, 1])
    space.low[:], space.high[:] = low, high  # gymnasium refuses them at construction only
    with pytest.raises(ValueError, match="dimension 1 "):
        action_leaves(space)


def test_a04_the_suggested_wrapper_works():
    env = Counter(3)
    env.action_space = Box(-np.inf, np.inf, (1,))
    bounded = TransformAction(env, lambda action: action, gymnasium.spaces.Box(-2, 2, shape=(1,), dtype=np.float32))
    assert action_leaves(CanonicalEnv(bounded).action_space)[0].space == Box(-2, 2, (1,))
    bounded.reset()
    assert bounded.step(np.array([1.5], np.float32))[0] == 1


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 2]), Dict(a=VECTOR), Box(0, 3, (2,), np.int64)])
def test_b07_other_action_spaces(space):
    with pytest.raises(ValueError, match="only Box actions") as error:
        action_leaves(space)
    assert str(space) in str(error.value)


def test_b07_action_without_elements():
    with pytest.raises(ValueError, match=r"no elements.*\(0,\)"):
        action_leaves(Box(-1, 1, (0,)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a09_conformed_actions_are_contained(dtype):
    space = box([0.1], [0.3], np.float64)
    actions = np.linspace(0.0, 0.4, 9_998).reshape(-1, 1)
    actions = np.concatenate([actions, [[0.1], [0.3]]]).astype(dtype)
    inside = conform(actions, space)
    assert inside.dtype == np.float64
    assert sum(space.contains(action) for action in inside) == 10_000
    assert (inside.min(), inside.max()) == (0.1, 0.3)


def test_a09_conform_casts_and_clips_to_each_dimension():
    space = box([[-1, 0], [2, -4]], [[3, 0.5], [2, -3]])
    action = np.array([[[-5, 0.25], [0, -3.5]], [[9, 9], [9, 9]]])
    inside = conform(action, space)
    assert inside.dtype == np.float32
    assert inside.tolist() == [[[-1, 0.25], [2, -3.5]], [[3, 0.5], [2, -3]]]
    assert action[0, 0, 0] == -5
    assert conform(np.float64(7.0), Box(-1, 1, ())) == np.ones((), np.float32)


def test_a09_unsigned_integers_become_the_next_wider_signed_type_and_others_are_refused():
    space = Dict(a=Box(0, 65535, (2,), np.uint16), b=Box(0, 2**32 - 1, (1,), np.uint32))
    a, b = observation_leaves(space)
    assert a.space == Box(0, 65535, (2,), np.int32) and b.space == Box(0, 2**32 - 1, (1,), np.int64)
    with pytest.raises(ValueError, match=r"observation: dtype uint64 is not supported"):
        observation_leaves(Box(0, 9, (2,), np.uint64))


def test_a04_a_box_that_float32_cannot_resolve_is_refused():
    far = Box(np.array([-1.0, 1e8]), np.array([1.0, 1e8 + 1]), dtype=np.float64)
    with pytest.raises(ValueError, match=r"too narrow for float32 .* in dimension 1 \[100000000.0, 100000001.0\]"):
        action_leaves(far)
    for fine in (Box(1e6, 1e6 + 100, (1,), np.float64), Box(2.0, 2.0, (1,)), Box(0.1, 0.3, (1,), np.float64)):
        assert action_leaves(fine)[0].space is fine
