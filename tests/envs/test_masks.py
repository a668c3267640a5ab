import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from mhrl.envs import CanonicalEnv, Leaf, action_leaves, make_factory, make_vector_env, mask_key, split
from mhrl.envs.masks import MaskReader

FLOAT = Box(-1, 1, (2,))
GEARBOX = Dict(gear=Discrete(3, start=1), lights=MultiBinary(2), throttle=FLOAT)
TREE = Dict(arm=Tuple([Discrete(2), FLOAT]), z=MultiDiscrete([1, 2]))


def read(space, said):
    masks = MaskReader(space, action_leaves(space)).read(said)
    assert all(mask.dtype == np.bool_ for mask in masks.values())
    return {name: mask.astype(int).tolist() for name, mask in masks.items()}


@pytest.mark.parametrize(
    ("space", "said", "right"),
    [
        (Discrete(3, start=5), np.array([1, 0, 1], np.int8), {"action_mask": [1, 0, 1]}),
        (Discrete(3), [True, False, False], {"action_mask": [1, 0, 0]}),
        (Discrete(3), (0.0, 1.0, 0.0), {"action_mask": [0, 1, 0]}),
        (Discrete(3), None, {"action_mask": [1, 1, 1]}),
        (Discrete(1), np.zeros(1), {"action_mask": [0]}),
        (Discrete(2), {"action": [0, 1]}, {"action_mask": [0, 1]}),
        (MultiDiscrete([2, 3]), np.array([1, 0, 1, 1, 0]), {"action_mask": [1, 0, 1, 1, 0]}),
        (MultiDiscrete([2, 3]), (np.array([1, 0]), np.array([1, 1, 0])), {"action_mask": [1, 0, 1, 1, 0]}),
        (MultiDiscrete([2, 2]), np.array([[1, 0], [0, 1]]), {"action_mask": [1, 0, 0, 1]}),
        (MultiDiscrete([[2], [3]]), (([1, 0],), ([0, 0, 1],)), {"action_mask": [1, 0, 0, 0, 1]}),
        (MultiDiscrete([1, 1]), [1, 0], {"action_mask": [1, 0]}),
        (MultiBinary(2), np.array([1, 0, 1, 1]), {"action_mask": [1, 0, 1, 1]}),
        (Box(-1, 1, (2,), np.int8), np.array([1, 0, 0, 1, 1, 1]), {"action_mask": [1, 0, 0, 1, 1, 1]}),
        (Dict(a=Discrete(2), b=FLOAT), np.array([0, 1]), {"action_mask_a": [0, 1]}),
        (Tuple([FLOAT, Discrete(2)]), np.array([0, 1]), {"action_mask_item_1": [0, 1]}),
        (Tuple([FLOAT, Discrete(2)]), [None, [0, 1]], {"action_mask_item_1": [0, 1]}),
        (GEARBOX, {"gear": [0, 1, 1]}, {"action_mask_gear": [0, 1, 1], "action_mask_lights": [1] * 4}),
        (GEARBOX, {"gear": None, "throttle": None}, {"action_mask_gear": [1] * 3, "action_mask_lights": [1] * 4}),
        (TREE, {"arm": ([0, 1], None)}, {"action_mask_arm_item_0": [0, 1], "action_mask_z": [1, 1, 1]}),
        (TREE, {"z": ([1], [0, 1])}, {"action_mask_arm_item_0": [1, 1], "action_mask_z": [1, 0, 1]}),
        (
            TREE,
            {"arm_item_0": [1, 0], "z": [1, 1, 0]},
            {"action_mask_arm_item_0": [1, 0], "action_mask_z": [1, 1, 0]},
        ),
        (TREE, {}, {"action_mask_arm_item_0": [1, 1], "action_mask_z": [1, 1, 1]}),
    ],
)
def test_b06_a_mask_may_be_said_in_several_ways(space, said, right):
    assert read(space, said) == right


@pytest.mark.parametrize(
    ("space", "said", "words"),
    [
        (Discrete(3), np.ones(4), ["action_mask.action", "(3,)", "(4,)"]),
        (Discrete(3), np.ones((1, 3)), ["action_mask.action", "(3,)", "(1, 3)"]),
        (Discrete(3), np.array([1, 0, 2]), ["action_mask.action", "0s and 1s", "2"]),
        (Discrete(2), np.array([np.nan, 1.0]), ["action_mask.action", "nan"]),
        (Discrete(3), 1, ["action_mask.action", "(3,)", "()"]),
        (MultiBinary(2), np.array([1, 0]), ["action_mask.action", "(4,)", "(2,)"]),
        (MultiDiscrete([2, 3]), (np.ones(3), np.ones(2)), ["action_mask.action", "[(2,), (3,)]", "[(3,), (2,)]"]),
        (GEARBOX, {"throttle": [1, 1]}, ["action_mask.throttle", "Box("]),
        (GEARBOX, {"gears": [1, 1, 1]}, ["gears", "gear, lights", "Dict("]),
        (GEARBOX, np.ones(3), ["action_mask:", "gear, lights"]),
        (GEARBOX, {"gear": [1, 1]}, ["action_mask.gear", "(3,)", "(2,)"]),
        (TREE, {"arm": [[1, 1]]}, ["action_mask.arm:", "Tuple("]),
        (TREE, {"arm": {"item_0": [1, 1]}}, ["action_mask.arm:", "Tuple("]),
    ],
)
def test_b06_anything_else_is_refused_by_name(space, said, words):
    with pytest.raises(ValueError) as error:
        read(space, said)
    assert [word for word in words if word not in str(error.value)] == []


class Says(gymnasium.Env):
    """Says its masks in the info, in the observation, or both; the t-th are `masks[t]`. It writes into its arrays."""

    def __init__(self, masks, action_space=None, observation_space=None, wrap=None, sends_info=True):
        self.masks, self.sends_info = [np.array(mask, np.int8) for mask in masks], sends_info
        self.action_space = action_space or Discrete(len(masks[0]))
        self.observation_space = observation_space or Box(-9, 9, (1,))
        self.wrap = wrap or (lambda position, mask: position)
        self.array = self.masks[0].copy()

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.out()

    def step(self, action):
        self.t += 1
        observation, info = self.out()
        return observation, 0.0, self.t == len(self.masks) - 1, False, info

    def out(self):
        self.array[:] = self.masks[self.t]
        position = np.full(1, self.t, np.float32)
        return self.wrap(position, self.array), {"action_mask": self.array} if self.sends_info else {}


def flat(observation):
    return {name: value.astype(int).tolist() for name, value in observation.items()}


def test_b06_masks_from_the_info_are_entries_of_the_observation():
    env = CanonicalEnv(Says([[1, 0], [0, 1], [0, 0]]), "info")
    mask = Leaf("action_mask", "action_mask", Box(0, 1, (2,), np.bool_))
    assert env.spaces.masks == (mask,)
    assert env.spaces.seen == (Leaf("observation", "observation", Box(-9, 9, (1,))), mask)
    seen = [env.reset()[0], env.step(0)[0], env.step(1)[0]]
    assert all(env.observation_space.contains(one) for one in seen)
    assert [flat(one) for one in seen] == [
        {"observation": [0], "action_mask": [1, 0]},
        {"observation": [1], "action_mask": [0, 1]},
        {"observation": [2], "action_mask": [0, 0]},  # nothing is left to do where an episode ends
    ]
    assert [array.dtype for array in split(seen[0], env.spaces.seen)] == [np.float32, np.bool_]
    assert mask_key(env.spaces.actions[0]) == "action_mask"


def test_b06_masks_from_a_part_of_the_observation():
    space = Dict(position=Box(-9, 9, (1,)), legal=MultiBinary(2))
    kwargs = {"observation_space": space, "wrap": lambda x, mask: {"position": x, "legal": mask}, "sends_info": False}
    actions = Dict(gear=Discrete(2), throttle=FLOAT)
    env = CanonicalEnv(Says([[1, 0], [0, 1]], actions, **kwargs), "legal")
    assert [leaf.key for leaf in env.spaces.seen] == [("observation", "position"), ("action_mask", "gear")]
    assert [leaf.name for leaf in env.spaces.seen] == ["position", "action_mask_gear"]
    assert flat(env.reset()[0]) == {"position": [0], "action_mask_gear": [1, 0]}
    assert mask_key(env.spaces.actions[0]) == ("action_mask", "gear")
    plain = Dict(position=Box(-9, 9, (1,)), legal=Box(0, 1, (2,), np.int8))
    kwargs["observation_space"] = plain
    assert list(CanonicalEnv(Says([[1, 0]], actions, **kwargs)).observation_space) == ["legal", "position"]


@pytest.mark.parametrize(
    ("kwargs", "source", "words"),
    [
        ({}, "legal", ["env.action_mask is 'legal'", "no such part", "Box("]),
        ({"observation_space": Dict(a=FLOAT)}, "legal", ["env.action_mask is 'legal'", "Dict("]),
        ({"observation_space": Dict(legal=FLOAT)}, "legal", ["observation:", "empty"]),
        ({"action_space": FLOAT}, "info", ["env.action_mask is set", "discrete", "Box("]),
        ({"observation_space": Dict(action_mask=FLOAT)}, "info", ["observation.action_mask", "env.action_mask="]),
    ],
)
def test_b06_masks_that_cannot_be_are_refused_at_once(kwargs, source, words):
    with pytest.raises(ValueError) as error:
        CanonicalEnv(Says([[1, 0]], **kwargs), source)
    assert [word for word in words if word not in str(error.value)] == []


def test_b06_a_wrong_mask_is_refused_and_a_missing_one_allows_everything():
    env = CanonicalEnv(Says([[1, 0, 1]], Discrete(2)), "info")
    with pytest.raises(ValueError, match=r"action_mask.action: expected 0s and 1s of shape \(2,\)"):
        env.reset()
    silent = CanonicalEnv(Says([[0, 1]], sends_info=False), "info")
    assert flat(silent.reset()[0]) == {"observation": [0], "action_mask": [1, 1]}


def says_env():
    # Local, so that it is sent to workers by value: they need not find this module.
    class Local(gymnasium.Env):
        observation_space = Box(-9, 9, (1,))
        action_space = Dict(a=Discrete(2, start=5), b=Tuple([MultiDiscrete([2, 3]), Box(-1, 1, (1,))]))

        def __init__(self, number):
            self.number, self.got = number, None

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return self.out()

        def step(self, action):
            assert self.action_space.contains(action)
            self.got = action
            self.t += 1
            observation, info = self.out()
            return observation, float(action["a"]), self.t == 2, False, info

        def out(self):
            branches = ([1, self.t == 0], [self.number == 0, self.number == 1, 1])
            return np.full(1, self.t, np.float32), {"action_mask": {"a": [1, self.t < 2], "b": (branches, None)}}

    return Local


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_b06_vector_envs_carry_nested_actions_and_each_envs_masks(mode):
    env = make_vector_env([make_factory(says_env(), {"number": i}, "info") for i in range(2)], 2, mode)
    assert flat(env.reset()[0]) == {
        "observation": [[0], [0]],
        "action_mask_a": [[1, 1]] * 2,
        "action_mask_b_item_0": [[1, 1, 1, 0, 1], [1, 1, 0, 1, 1]],
    }
    action = {
        "action": {
            "a": np.array([5, 6]),
            "b_item_0": np.array([[0, 2], [1, 1]]),
            "b_item_1": np.array([[0.5], [-1]], np.float32),
        }
    }
    observation, reward, *_ = env.step(action)
    assert reward.tolist() == [5, 6]
    assert flat(observation)["action_mask_b_item_0"] == [[1, 0, 1, 0, 1], [1, 0, 0, 1, 1]]
    got = env.get_attr("got")
    assert [(one["a"], one["b"][0].tolist(), one["b"][1].tolist()) for one in got] == [
        (5, [0, 2], [0.5]),
        (6, [1, 1], [-1.0]),
    ]
    observation, *_, infos = env.step(action)
    assert flat(observation)["action_mask_a"] == [[1, 1], [1, 1]]  # of the next episode
    assert [flat(last)["action_mask_a"] for last in infos["final_obs"]] == [[1, 0], [1, 0]]
    env.close()
