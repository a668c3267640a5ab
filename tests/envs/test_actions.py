import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Sequence, Text, Tuple
from gymnasium.wrappers import TransformAction
from hypothesis import given, settings
from hypothesis import strategies as st

from mhrl.envs import CanonicalEnv, Leaf, action_leaves, conform, join
from mhrl.envs.probe import Counter

VECTOR = Box(-1, 1, (2,), np.float64)


class Recorder(gymnasium.Env):
    """Keeps the actions that it got, and refuses what its space does not contain."""

    observation_space = Box(-1, 1, (1,))

    def __init__(self, action_space):
        self.action_space, self.got = action_space, []

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.got.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def box(low, high, dtype=np.float32):
    return Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


def same(one, other):
    """Equal in values and in every type."""
    if isinstance(other, dict):
        return type(one) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return type(one) is tuple and len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, np.ndarray):
        return (
            type(one) is np.ndarray and one.dtype == other.dtype and one.shape == other.shape and (one == other).all()
        )
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    ("space", "held"),
    [
        (Discrete(3, start=-1), box(-1, 1, np.int64)),
        (Discrete(1, start=2), box(2, 2, np.int64)),
        (Discrete(3, start=5, dtype=np.int32), box(5, 7, np.int32)),
        (MultiDiscrete([3, 2], start=[5, -1]), box([5, -1], [7, 0], np.int64)),
        (MultiDiscrete([1, 3]), box([0, 0], [0, 2], np.int64)),
        (MultiDiscrete([[2], [2]]), box([[0], [0]], [[1], [1]], np.int64)),
        (MultiDiscrete([2, 3], dtype=np.uint16), box([0, 0], [1, 2], np.int32)),
        (MultiBinary(3), box([0] * 3, [1] * 3, np.int8)),
        (MultiBinary([2, 2]), box([[0, 0]] * 2, [[1, 1]] * 2, np.int8)),
        (Box(-2, 3, (2,), np.int64), Box(-2, 3, (2,), np.int64)),
        (Box(0, 9, (2,), np.uint32), Box(0, 9, (2,), np.int64)),
        (Box(0, 1, (2,), np.bool_), Box(0, 1, (2,), np.int8)),
        (VECTOR, VECTOR),
    ],
)
def test_b07_every_leaf_is_held_as_a_box(space, held):
    (leaf,) = action_leaves(space)
    assert leaf == Leaf("action", "action", held)
    assert leaf.space.dtype == held.dtype
    assert leaf.discrete == (held.dtype != np.float64)
    assert CanonicalEnv(Recorder(space)).action_space == held


def test_branches_and_their_sizes():
    (leaf,) = action_leaves(MultiDiscrete([[3, 2], [1, 4]], start=[[0, 5], [-1, 7]]))
    assert (leaf.size, leaf.sizes) == (4, (3, 2, 1, 4))
    (leaf,) = action_leaves(Discrete(3, start=-1))
    assert (leaf.size, leaf.sizes) == (1, (3,))
    assert action_leaves(Box(-128, 127, (1,), np.int8))[0].sizes == (256,)


def test_b07_nested_leaves_are_named_and_sorted_by_path():
    arm = Tuple([Discrete(2), Dict([("z", VECTOR), ("b", MultiBinary(2))])])
    leaves = action_leaves(Dict([("gear", Discrete(3, start=1)), ("arm", arm)]))
    assert [(leaf.name, leaf.key) for leaf in leaves] == [
        ("arm_item_0", ("action", "arm_item_0")),
        ("arm_item_1_b", ("action", "arm_item_1_b")),
        ("arm_item_1_z", ("action", "arm_item_1_z")),
        ("gear", ("action", "gear")),
    ]
    assert leaves == action_leaves(Dict([("arm", arm), ("gear", Discrete(3, start=1))]))
    many = action_leaves(Tuple([Discrete(2)] * 11))
    assert [leaf.name for leaf in many] == [f"item_{i}" for i in range(11)]  # in order: item_10 comes last
    assert action_leaves(Dict(only=VECTOR))[0].key == ("action", "only")


def test_the_canonical_space_is_nested_under_action():
    canonical = CanonicalEnv(Recorder(Tuple([Discrete(2, start=1), VECTOR])))
    parts = Dict([("item_0", box(1, 2, np.int64)), ("item_1", VECTOR)])
    assert canonical.action_space == Dict(action=parts)
    leaves = canonical.spaces.actions
    arrays = [np.array(2), np.zeros(2)]
    assert join(arrays, leaves) == {"action": {"item_0": arrays[0], "item_1": arrays[1]}}
    assert join(arrays[:1], action_leaves(VECTOR)) is arrays[0]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (MultiDiscrete([]), ["action:", "no elements", "MultiDiscrete([])"]),
        (Box(-1, 1, (0,)), ["action:", "no elements", "Box([], [], (0,), float32)"]),
        (Dict(a=Tuple([Box(0, 1, (2, 0))])), ["action.a.item_0:", "no elements"]),
        (Dict(), ["action:", "empty", "Dict()"]),
        (Dict(a=VECTOR, b=Tuple([])), ["action.b:", "empty", "Tuple()"]),
        (Text(5), ["action:", "Text("]),
        (Sequence(Discrete(2)), ["action:", "Sequence("]),
        (OneOf([Discrete(2), VECTOR]), ["action:", "OneOf("]),
        (Dict(a=Graph(VECTOR, None)), ["action.a:", "Graph("]),
        (Dict({"arm": Tuple([VECTOR]), "arm_item_0": VECTOR}), ["action.arm_item_0:", "action.arm.item_0", "rename"]),
        (Dict({"a.b": VECTOR}), ["action:", "a.b", "dot"]),
        (Box(0, 9, (2,), np.uint64), ["action:", "uint64"]),
        (Box(0, 100_000, (1,), np.int64), ["action:", "dimension 0 [0, 100000]", "100000 values"]),
        (Discrete(100_001), ["action:", "dimension 0 [0, 100000]", "100000 values", "Discrete(100001)"]),
        (MultiDiscrete([2, 100_001]), ["action:", "dimension 1 [0, 100000]", "100000 values"]),
        (Dict(a=Box(-np.inf, np.inf, (2,), np.int32)), ["action.a:", "dimension 0 [-2147483648", "dimension 1 ["]),
        (Dict(a=Box(0, np.inf, (1,), np.int8)), ["action.a:", "dimension 0 [0, 127]"]),
        (Dict(a=Dict(b=Box(-np.inf, 1, (1,)))), ["action.a.b:", "dimension 0 [-inf"]),
    ],
)
def test_b07_refused_action_spaces_are_printed(space, words):
    for refuse in (action_leaves, lambda space: CanonicalEnv(Recorder(space))):
        with pytest.raises(ValueError) as error:
            refuse(space)
        assert [word for word in words if word not in str(error.value)] == []


def test_a_box_of_100_000_values_is_fine():
    assert action_leaves(Box(1, 100_000, (1,), np.int64))[0].sizes == (100_000,)


@pytest.mark.parametrize(
    ("space", "canonical", "native"),
    [
        (Discrete(3, start=-1), np.array(-1), -1),
        (Discrete(3, start=5, dtype=np.int8), np.array(7, np.int8), 7),
        (MultiDiscrete([3, 2], start=[5, -1]), np.array([7, -1]), np.array([7, -1])),
        (MultiDiscrete([[2], [2]], dtype=np.uint8), np.array([[1], [0]]), np.array([[1], [0]], np.uint8)),
        (MultiBinary(2), np.array([1, 0]), np.array([1, 0], np.int8)),
        (Box(0, 9, (2,), np.uint16), np.array([9, 0], np.int32), np.array([9, 0], np.uint16)),
        (Box(0, 1, (2,), np.bool_), np.array([1, 0], np.int8), np.array([True, False])),
        (Box(-1, 1, (), np.float32), np.array(0.5), np.array(0.5, np.float32)),
        (
            Dict([("b", Tuple([Discrete(2), VECTOR])), ("a", MultiBinary(1))]),
            {"action": {"a": np.array([1]), "b_item_0": np.array(1), "b_item_1": np.array([0.5, -1])}},
            {"b": (1, np.array([0.5, -1])), "a": np.array([1], np.int8)},
        ),
    ],
)
def test_b07_the_env_gets_its_own_types(space, canonical, native):
    inner = Recorder(space)
    CanonicalEnv(inner).step(canonical)
    assert same(inner.got[0], native)


def test_b07_an_action_of_another_shape_is_refused():
    env = CanonicalEnv(Recorder(Dict(a=MultiBinary(2), b=Discrete(2))))
    with pytest.raises(ValueError, match=r"action\.a: expected shape \(2,\), got \(1, 2\)"):
        env.step({"action": {"a": np.zeros((1, 2)), "b": np.array(0)}})
    with pytest.raises(ValueError, match=r"action\.b: expected shape \(\), got \(2,\)"):
        env.step({"action": {"a": np.zeros(2), "b": np.zeros(2)}})


def test_c05_the_arrays_of_a_nested_action_are_the_envs_own():
    inner = Recorder(Tuple([Box(-9, 9, (2, 3)), MultiBinary(2)]))
    batch = np.arange(12, dtype=np.float32).reshape(2, 3, 2).transpose(0, 2, 1) / 2
    CanonicalEnv(inner).step({"action": {"item_0": batch[1], "item_1": np.array([0, 1], np.int8)}})
    got = inner.got[0][0]
    assert got.flags.c_contiguous and got.tolist() == [[3, 4, 5], [3.5, 4.5, 5.5]]
    got *= 0
    assert batch[1, 0, 0] == 3


def flattened(space, sample, words=()):
    """The canonical arrays by name of a native action, written down a second time."""
    if isinstance(space, Dict):
        parts = [(key, space[key], sample[key]) for key in space.spaces]
    elif isinstance(space, Tuple):
        parts = [(f"item_{i}", part, one) for i, (part, one) in enumerate(zip(space, sample, strict=True))]
    else:
        return {"_".join(words) or "action": np.asarray(sample)}
    return {name: array for key, part, one in parts for name, array in flattened(part, one, (*words, key)).items()}


@settings(max_examples=200)
@given(data=st.data())
def test_b07_a_sample_comes_back_as_it_was(action_spaces, data):
    space = data.draw(action_spaces)
    space.seed(data.draw(st.integers(0, 2**16)))
    inner = Recorder(space)
    env = CanonicalEnv(inner)
    sample = space.sample()
    arrays = flattened(space, sample)
    leaves = env.spaces.actions
    assert {leaf.name for leaf in leaves} == arrays.keys()
    held = [conform(arrays[leaf.name], leaf.box) for leaf in leaves]
    action = join(held, leaves)
    assert env.action_space.contains(action)
    env.step(action)
    assert space.contains(inner.got[0])
    assert same(inner.got[0], plain(space, sample))


def plain(space, sample):
    """A sample as an env may expect it: ints and arrays, where gymnasium draws numpy's scalars."""
    if isinstance(space, Dict):
        return {key: plain(space[key], one) for key, one in sample.items()}
    if isinstance(space, Tuple):
        return tuple(map(plain, space, sample))
    return int(sample) if isinstance(space, Discrete) else np.asarray(sample)


@pytest.mark.parametrize(
    ("action", "space", "inside"),
    [
        ([-0.6, 2.5, 1.49], Box(0, 2, (3,), np.int64), [0, 2, 1]),
        ([300.0, -300.0], Box(-128, 127, (2,), np.int8), [127, -128]),  # cast first, they would be 44 and -44
        ([300, -7], Box(0, 255, (2,), np.uint8), [255, 0]),
        ([[4.6], [-9.0]], Box(5, 7, (1,), np.int32), [[5], [5]]),
        (2.4, Box(1, 3, (), np.int64), 2),
    ],
)
def test_b07_conform_rounds_for_an_integer_box(action, space, inside):
    for dtype in (np.float32, np.float64):
        got = conform(
            np.array(action, dtype) if isinstance(np.ravel(action)[0], np.floating) else np.array(action), space
        )
        assert type(got) is np.ndarray and got.dtype == space.dtype and got.tolist() == inside


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


def test_a04_a_box_that_float32_cannot_resolve_is_refused():
    far = Box(np.array([-1.0, 1e8]), np.array([1.0, 1e8 + 1]), dtype=np.float64)
    with pytest.raises(ValueError, match=r"too narrow for float32 .* in dimension 1 \[100000000.0, 100000001.0\]"):
        action_leaves(far)
    for fine in (Box(1e6, 1e6 + 100, (1,), np.float64), Box(2.0, 2.0, (1,)), Box(0.1, 0.3, (1,), np.float64)):
        assert action_leaves(fine)[0].space is fine
