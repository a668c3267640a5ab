from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from mhrl.envs import EmptyMaskError, Leaf
from mhrl.heads import CriticHead, DeterministicHead, QHead
from mhrl.layout import HeadSpec
from mhrl.network import Network
from mhrl.policy import GreedyPolicy
from mhrl.trunks import IdentityTrunk


@given(order=st.permutations(range(5)), cuts=st.sets(st.integers(1, 4)))
def test_assemble_puts_every_output_at_its_dimension(make_network, order, cuts):
    edges = [0, *sorted(cuts), 5]
    heads = {f"h{i}": tuple(order[a:b]) for i, (a, b) in enumerate(pairwise(edges))}
    network = make_network(heads)
    # Each head says which dimensions it covers; the assembled action must then count 0, 1, 2, 3, 4.
    actions = {name: torch.tensor(dims, dtype=torch.float32).expand(2, 3, -1) for name, dims in heads.items()}
    assert network.assemble(actions).tolist() == [[[0.0, 1.0, 2.0, 3.0, 4.0]] * 3] * 2


def test_assemble_does_not_depend_on_the_order_of_the_dict(make_network):
    network = make_network({"arm": (2, 0), "gripper": (1,)})
    actions = {"gripper": torch.tensor([1.0]), "arm": torch.tensor([2.0, 0.0])}
    assert network.assemble(actions).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["type", "train", "float", "forward", "head", "trunk", "specs"])
def test_a_head_may_have_any_name(make_network, make_batch, name):
    network = make_network({name: (1,), "arm": (0,)})
    batch = make_batch(network)
    action = GreedyPolicy(network)(batch)["action"]
    head = network.head(name)
    torch.testing.assert_close(action[:, 1:], head(network.trunk_features(network.observe(batch))))
    assert network.modules_of[name] == (f"head_{name}", "trunk")
    network.train(False)
    assert not head.training


def test_state_dict_holds_weights_of_trunk_and_heads_only(make_network):
    network = make_network({"arm": (1, 0)})
    layers = ("body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias")
    heads = [f"head_{name}.{layer}" for name in ("arm", "value") for layer in layers]
    assert list(network.state_dict()) == ["trunk.body.0.weight", "trunk.body.0.bias", *heads]


@pytest.mark.parametrize(
    ("keys", "size"), [(("features",), 5), (("observation",), 3), (("features", "observation"), 8)]
)
def test_heads_read_their_in_keys(make_network, make_batch, keys, size):
    network = make_network(in_keys={"arm": keys, "value": keys})
    batch, seen = make_batch(network), []
    observation = network.observe(batch)
    features = network.trunk_features(observation)
    sources = {"features": features, "observation": batch["observation"]}
    right = torch.cat([sources[key] for key in keys], -1)
    assert right.shape[-1] == size
    network.head("arm").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network.head("value").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network.propose(["arm"], features, observation)
    network.action_values(features, observation, batch["action"])
    assert torch.equal(seen[0], right) and torch.equal(seen[1], right)


def test_modules_of_names_the_trunk_only_where_it_is_read_and_can_be_trained(make_network):
    network = make_network(in_keys={"arm": ("observation",), "value": ("features", "observation")})
    assert network.modules_of == {
        "arm": ("head_arm",),
        "gripper": ("head_gripper", "trunk"),
        "value": ("head_value", "trunk"),
    }
    assert make_network(trunk="identity").modules_of == {
        "arm": ("head_arm",),
        "gripper": ("head_gripper",),
        "value": ("head_value",),
    }


def test_observe_and_stored(make_network, make_batch):
    network = make_network(trunk="cnn")
    batch = make_batch(network, 2, 3)
    now, then = network.observe(batch), network.observe(batch, following=True)
    assert set(now) == set(then) == {("observation", "img"), ("observation", "vec")}
    assert now["observation", "img"].dtype == torch.uint8
    assert torch.equal(now["observation", "vec"], batch["observation", "vec"])
    assert torch.equal(then["observation", "vec"], batch["next", "observation", "vec"])
    action, index = network.stored(batch)
    assert torch.equal(action, batch["action"]) and index.shape == (2, 3, 1) and not index.any()


@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (1, 2, 2)])
def test_action_leaves_of_any_shape(shape):
    size = int(np.prod(shape))
    space = Box(-1, np.arange(1, size + 1, dtype=np.float32).reshape(shape), shape)
    flat = Box(space.low.reshape(-1), space.high.reshape(-1))
    trunk = IdentityTrunk({"observation": Box(-1, 1, (3,))})
    heads = {"actor": DeterministicHead(3, flat, [4]), "value": QHead(3, flat, widths=[4])}
    specs = {"actor": HeadSpec("action", tuple(range(size))), "value": HeadSpec("", ())}
    network = Network(trunk, heads, specs, (Leaf("action", "action", space),))
    batch = TensorDict({"observation": torch.randn(6, 3)}, [6])
    GreedyPolicy(network)(batch)
    assert batch["action"].shape == (6, *shape)
    action, _ = network.stored(batch)
    assert action.shape == (6, size)
    torch.testing.assert_close(action, heads["actor"](batch["observation"]))


def saturate(network, value):
    for name in network.acting:
        for parameter in network.head(name).parameters():
            nn.init.zeros_(parameter)
        nn.init.constant_(network.head(name).body[-1].bias, value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a09_greedy_action_is_in_the_space_and_of_its_dtype_at_the_extremes(dtype):
    # Centre plus half-range may round above the bound, and float32(0.3) lies above a float64 bound of 0.3.
    rng = np.random.default_rng(0)
    low = np.append(rng.uniform(-5, 0, 200), 0.1).astype(dtype)
    high = np.append(rng.uniform(0, 5, 200), 0.3).astype(dtype)
    space = Box(low, high, dtype=dtype)
    trunk = IdentityTrunk({"observation": Box(-1, 1, (3,))})
    heads = {"actor": DeterministicHead(3, space, [4]), "value": QHead(3, space, widths=[4])}
    specs = {"actor": HeadSpec("action", tuple(range(201))), "value": HeadSpec("", ())}
    network = Network(trunk, heads, specs, (Leaf("action", "action", space),))
    for raw, bound in ((100.0, high), (-100.0, low)):
        saturate(network, raw)
        action = GreedyPolicy(network)(TensorDict({"observation": torch.zeros(1, 3)}, [1]))["action"][0].numpy()
        assert space.contains(action)
        np.testing.assert_allclose(action, bound, rtol=1e-5, atol=1e-6)


def test_a03_acting_and_the_joint_action_use_one_map(make_network, make_batch):
    network = make_network({"arm": (1,), "gripper": (0,)}, low=[-1, 0], high=[3, 0.5])
    for raw, right in ((-100.0, [-1, 0]), (0.0, [1, 0.25]), (100.0, [3, 0.5])):
        saturate(network, raw)
        action = GreedyPolicy(network)(make_batch(network))["action"]
        torch.testing.assert_close(action, torch.tensor(right, dtype=torch.float32).expand(6, 2))


def test_greedy_policy_needs_no_grad_and_no_batch_dimension(make_network):
    network = make_network()
    policy, observation = GreedyPolicy(network), torch.randn(3)
    alone = policy(TensorDict({"observation": observation}, []))["action"]
    row = policy.act({"observation": observation[None]})["action"]
    assert not row.requires_grad and alone.shape == (2,) and row.shape == (1, 2)
    torch.testing.assert_close(alone, row[0])
    assert policy.in_keys == ["observation"] and policy.out_keys == ["action"]


HYBRID = Dict({"gear": Discrete(3, start=1), "lights": MultiDiscrete([2, 4]), "throttle": Box(-1, 2, (2,))})


def test_modules_of_branches_their_twins_and_a_dueling_value(make_agent):
    network = make_agent(HYBRID, twin=True, dueling="mean")
    shared = ("head_value", "twin_value", "trunk")
    assert network.modules_of == {
        "throttle": ("head_throttle", "trunk"),
        "gear": ("head_gear", "twin_gear", *shared),
        "lights_0": ("head_lights_0", "twin_lights_0", *shared),
        "lights_1": ("head_lights_1", "twin_lights_1", *shared),
    }
    assert network.proposing == ("throttle",) and network.critics == ("gear", "lights_0", "lights_1")
    assert network.copies == 2 and network.acting == ("gear", "lights_0", "lights_1", "throttle")


@pytest.mark.parametrize("dueling", ["none", "mean", "max"])
@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("critics", [None, ["lights_1"], ["gear", "lights_1"]])
@pytest.mark.parametrize("apart", [False, True])
def test_action_values_are_those_of_the_heads_one_by_one(make_agent, make_batch, dueling, twin, critics, apart):
    network = make_agent(HYBRID, twin=twin, dueling=dueling, double=True)
    batch = make_batch(network, 2, 3)
    observation = network.observe(batch)
    features = network.trunk_features(observation)
    action, _ = network.stored(batch)
    names = network.critics if critics is None else critics
    rows = {name: features * (2.0 + i) if apart else features for i, name in enumerate(names)}
    values = network.action_values(rows if apart else features, observation, action, critics)
    assert values.shape == (2, 3, 1 + twin, len(names), 4)
    for copy in range(1 + twin):
        for d, name in enumerate(names):
            right = network.head(name, copy)(rows[name], action)
            if dueling != "none":
                level = right.mean(-1, keepdim=True) if dueling == "mean" else right.amax(-1, keepdim=True)
                right = network.head("value", copy)(rows[name], action) + right - level
            n = right.shape[-1]
            torch.testing.assert_close(values[..., copy, d, :n], right, rtol=0, atol=1e-12)
            assert (values[..., copy, d, n:] == -torch.inf).all()


def test_dueling_values_have_the_state_value_as_their_mean_or_maximum(make_agent, make_batch):
    for dueling, level in (("mean", torch.mean), ("max", torch.amax)):
        network = make_agent(MultiDiscrete([5, 2]), dueling=dueling, double=True)
        batch = make_batch(network)
        observation = network.observe(batch)
        features = network.trunk_features(observation)
        values = network.action_values(features, observation, features[..., :0]).squeeze(-3)
        state = network.head("value")(features, features[..., :0])
        for d, size in enumerate((5, 2)):  # the branch's own values only, sample by sample
            torch.testing.assert_close(level(values[:, d, :size], -1), state.squeeze(-1), rtol=0, atol=1e-12)


def test_heads_that_read_different_things_are_not_computed_together_but_come_out_in_order(make_agent, make_batch):
    network = make_agent(
        MultiDiscrete([3, 3, 3]), {"action_1": {"in_keys": "observation"}, "action_2": {"widths": [4]}}
    )
    batch = make_batch(network)
    observation = network.observe(batch)
    features = network.trunk_features(observation)
    values = network.action_values(features, observation, features[..., :0]).squeeze(-3)
    for d, read in enumerate((features, batch["observation"], features)):
        torch.testing.assert_close(values[:, d], network.head(f"action_{d}")(read, features[..., :0]))


def test_greedy_policy_takes_the_best_allowed_value_of_each_branch(make_agent, make_batch):
    network = make_agent(HYBRID, masks=True)
    batch = make_batch(network, 200)
    choice = GreedyPolicy(network).choose({key: batch[key] for key in GreedyPolicy(network).in_keys})
    observation = network.observe(batch)
    values = network.action_values(network.trunk_features(observation), observation, choice.action).squeeze(-3)
    allowed = {"gear": batch["action_mask", "gear"], "lights": batch["action_mask", "lights"]}
    branches = (allowed["gear"], allowed["lights"][:, :2], allowed["lights"][:, 2:])
    for d, mask in enumerate(branches):
        for row in range(200):
            legal = [i for i, ok in enumerate(mask[row].tolist()) if ok]
            assert choice.index[row, d].item() == max(legal, key=lambda i: values[row, d, i].item())
    acted = GreedyPolicy(network).act(batch)
    assert acted["action", "gear"].tolist() == (choice.index[:, 0] + 1).tolist()
    assert acted["action", "lights"].dtype == torch.int64 and acted["action", "throttle"].dtype == torch.float32


def test_b06_a_mask_that_allows_nothing_names_env_and_head(make_agent, make_batch):
    network = make_agent(HYBRID, masks=True)
    batch = make_batch(network, 4)
    batch["action_mask", "lights"][2, 2:] = False
    with pytest.raises(EmptyMaskError, match=r"env 2.*'lights_1'"):
        GreedyPolicy(network).act(batch)


def test_the_order_of_a_dicts_keys_changes_nothing(make_agent, make_batch):
    parts = [("gear", Discrete(3)), ("arm", Box(-1, 2, (2,))), ("lights", MultiBinary(2)), ("b", Box(0, 3, (1,)))]
    networks = [make_agent(Dict(order), seed=seed) for seed, order in enumerate((parts, parts[::-1]))]
    batch = make_batch(networks[0])
    networks[1].load_state_dict(networks[0].state_dict())
    first, second = (GreedyPolicy(network).act(batch) for network in networks)
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_a_head_that_only_overrides_forward_works_beside_others(make_agent, make_batch):
    class Constant(CriticHead):
        def __init__(self, in_features, space, outputs):
            super().__init__(in_features, space)
            self.values = nn.Parameter(torch.arange(float(outputs)))

        def forward(self, features, action):
            return self.values.expand(*features.shape[:-1], -1)

    network = make_agent(MultiDiscrete([3, 4]))
    network.add_module("head_action_0", Constant(5, Box(np.zeros(0, np.float32), np.zeros(0, np.float32)), 3))
    batch = make_batch(network)
    assert (GreedyPolicy(network).act(batch)["action"][:, 0] == 2).all()
