import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn
from torchrl.collectors import Collector as TorchRLCollector
from torchrl.envs import GymWrapper, InitTracker, TransformedEnv

from mhrl.envs import CanonicalEnv, Leaf
from mhrl.exploration import ActionNoise, EpsilonGreedy, ExploringPolicy, Gaussian, OrnsteinUhlenbeck
from mhrl.heads import DeterministicHead, QHead
from mhrl.layout import HeadSpec
from mhrl.network import Network
from mhrl.policy import GreedyPolicy
from mhrl.trunks import IdentityTrunk

ARM = Leaf("arm", ("action", "arm"), Box(np.float32([-1, 0]), np.float32([3, 0.5])))
GEAR = Leaf("gear", ("action", "gear"), Box(1, 3, (), np.int64))
JOINT = Leaf("joint", ("action", "joint"), Box(-2, 2, (2,)))
LIGHTS = Leaf("lights", ("action", "lights"), Box(0, 1, (2,), np.int8))
GEAR_MASK = Leaf("action_mask_gear", ("action_mask", "gear"), Box(0, 1, (3,), bool))


def network_of(*leaves, bins=None, masks=(), observation=None):
    """A head for each continuous leaf, and a branch for each element of a discrete leaf or of one that is cut."""
    torch.manual_seed(0)
    trunk = IdentityTrunk({"observation": observation or Box(-1, 1, (3,))})
    size, bins = trunk.out_features, bins or {}
    boxes = [leaf.box for leaf in leaves if not leaf.discrete and leaf.name not in bins]
    low, high = (
        np.concatenate([np.zeros(0), *(getattr(box, side).ravel() for box in boxes)]) for side in ("low", "high")
    )
    whole = Box(low.astype(np.float32), high.astype(np.float32))
    heads, specs = {}, {}
    for leaf in leaves:
        if not leaf.discrete and leaf.name not in bins:
            flat = Box(leaf.box.low.reshape(-1), leaf.box.high.reshape(-1), dtype=leaf.box.dtype.type)
            heads[leaf.name] = DeterministicHead(size, flat, [8])
            specs[leaf.name] = HeadSpec(leaf.name, tuple(range(leaf.size)))
            continue
        for dim in range(leaf.size):
            n = bins.get(leaf.name) or int(leaf.box.high.reshape(-1)[dim]) - int(leaf.box.low.reshape(-1)[dim]) + 1
            name = f"{leaf.name}_{dim}" if leaf.box.shape else leaf.name
            heads[name] = QHead(size, whole, outputs=n, widths=[8], final_init=None)
            specs[name] = HeadSpec(leaf.name, (dim,), values=n)
    if not any(spec.values for spec in specs.values()):
        heads["value"], specs["value"] = QHead(size, whole, widths=[8]), HeadSpec()
    return Network(trunk, heads, specs, leaves, masks)


def policy_of(network, kind, seed=0, num_envs=1, **kinds):
    heads = {name: kinds.get(name, kind) for name in network.acting}
    return ExploringPolicy(GreedyPolicy(network), ActionNoise(network, heads, seed, num_envs))


def observations(*shape):
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("lead", [(4,), ()])
@pytest.mark.parametrize("leaves", [(ARM,), (GEAR, LIGHTS), (ARM, GEAR, JOINT, LIGHTS)])
def test_forward_writes_what_act_returns(lead, leaves):
    policy = policy_of(network_of(*leaves, bins={"joint": 5}), Gaussian(0.3, epsilon=0.3))
    twin, seen = copy.deepcopy(policy), observations(*lead)
    right, found = policy.act({"observation": seen}, 0), twin(TensorDict({"observation": seen}, lead))
    assert set(right) == {leaf.key for leaf in leaves} == set(policy.out_keys) and policy.in_keys == ["observation"]
    for leaf in leaves:
        assert torch.equal(found[leaf.key], right[leaf.key].to(found[leaf.key].dtype))
        rows = found[leaf.key].reshape(-1, *leaf.box.shape).numpy()
        assert found[leaf.key].shape == (*lead, *leaf.box.shape) and all(
            leaf.box.contains(np.asarray(row)) for row in rows
        )


def test_a03_without_noise_the_action_is_the_greedy_one():
    policy = policy_of(network_of(ARM, GEAR, JOINT, LIGHTS, bins={"joint": 5}), EpsilonGreedy(epsilon=0.0))
    seen = {"observation": observations(50)}
    found, right = policy.act(seen, 0), policy.greedy.act(seen)
    assert all(torch.equal(found[key], right[key]) for key in right)
    assert len(found["action", "arm"][:, 0].unique()) == 50 and len(found["action", "gear"].unique()) > 1


def test_each_head_explores_where_it_sits():
    """Leaves by name: two heads that act at random, between others that do not."""
    network = network_of(ARM, GEAR, JOINT, LIGHTS, bins={"joint": 5})
    policy = policy_of(network, Gaussian(0.0), joint_1=EpsilonGreedy(epsilon=1.0), arm=Gaussian(0.01))
    seen = {"observation": observations(400)}
    found, right = policy.act(seen, 0), policy.greedy.act(seen)
    assert torch.equal(found["action", "gear"], right["action", "gear"])
    assert torch.equal(found["action", "lights"], right["action", "lights"])
    assert torch.equal(found["action", "joint"][:, 0], right["action", "joint"][:, 0])
    assert found["action", "joint"][:, 1].unique().tolist() == [-2, -1, 0, 1, 2]
    step = (found["action", "arm"] - right["action", "arm"]) / torch.tensor([2.0, 0.25])
    torch.testing.assert_close(step.std(0), torch.full((2,), 0.01), rtol=0.15, atol=0)


def test_a_dimension_that_is_cut_executes_its_values_or_what_lies_between():
    network = network_of(JOINT, bins={"joint": 5})  # values -2, -1, 0, 1, 2; a half-range of them is 2
    seen = {"observation": torch.zeros(2000, 3)}
    at_values, between = (policy_of(network, Gaussian(0.3, round=kept)).act(seen, 0) for kept in (True, False))
    greedy = GreedyPolicy(network).act(seen)["action", "joint"]
    eps = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(between["action", "joint"], (greedy + 0.3 * 2 * eps).clamp(-2, 2))
    assert torch.equal(at_values["action", "joint"], between["action", "joint"].round())


@pytest.mark.parametrize("kind", [Gaussian(1.0), Gaussian(1.0, redraw=True), EpsilonGreedy(epsilon=0.5)])
def test_b06_masks_of_each_env_are_honoured(kind):
    network = network_of(ARM, GEAR, LIGHTS, masks=(GEAR_MASK,))
    policy = policy_of(network, kind)
    masks = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=torch.bool).repeat(250, 1)
    actions = policy.act({"observation": observations(1000), GEAR_MASK.key: masks}, 0)
    gear = actions["action", "gear"]
    assert [gear[env::4].unique().tolist() for env in range(4)] == [[1, 3], [2], [3], [1, 2, 3]]
    assert actions["action", "lights"].unique().tolist() == [0, 1]


def test_act_tells_the_noise_where_episodes_start():
    policy = policy_of(network_of(ARM, GEAR), OrnsteinUhlenbeck(std_end=0.1, anneal_frames=10), num_envs=3)
    twin = copy.deepcopy(policy)
    seen, starts = {"observation": observations(3)}, torch.tensor([True, False, False])
    for frames, is_init in ((0, None), (3, starts), (6, None)):
        found = policy.act(seen, frames, is_init)
        twin.noise.step(frames)
        action, _ = twin.noise.perturb(twin.greedy.choose(seen), is_init)
        assert torch.equal(found["action", "arm"], action)
        assert policy.noise.frames == frames and torch.equal(policy.noise.x, twin.noise.x)
    assert not torch.equal(policy.act(seen, 0)["action", "arm"], twin.act(seen, 0, ~starts)["action", "arm"])


def test_forward_reads_where_episodes_start():
    policy = policy_of(network_of(ARM), OrnsteinUhlenbeck(), num_envs=2)
    twin, seen, starts = copy.deepcopy(policy), observations(2), torch.tensor([[True], [False]])
    for entries in ({}, {"is_init": starts}, {}):
        action = policy(TensorDict({"observation": seen, **entries}, [2]))[ARM.key]
        assert torch.equal(action, twin.act({"observation": seen}, 0, entries.get("is_init"))[ARM.key])
    assert not torch.equal(action, twin.act({"observation": seen}, 0, starts)[ARM.key])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a09_td_actions_have_the_dtype_of_the_space_and_are_inside(dtype):
    leaf = Leaf("action", "action", Box(0.1, 0.3, (1,), dtype))
    policy = policy_of(network_of(leaf), Gaussian(3.0))
    actions = policy(TensorDict({"observation": observations(10_000)}, [10_000]))["action"].numpy()
    assert all(leaf.box.contains(action) for action in actions)
    assert np.isclose(actions, leaf.box.low).any() and np.isclose(actions, leaf.box.high).any()


def policy_for(env, kind):
    leaf = Leaf("action", "action", env.action_space)
    return policy_of(network_of(leaf, observation=env.observation_space), kind)


@pytest.mark.filterwarnings("ignore:The env passed to Collector")
@pytest.mark.parametrize(
    ("name", "kind"),
    [("Pendulum-v1", Gaussian(1.0)), ("Pendulum-v1", EpsilonGreedy()), ("CartPole-v1", EpsilonGreedy())],
)
def test_torchrl_collector_stores_legal_actions(name, kind):
    env = CanonicalEnv(gym.make(name))
    policy = policy_for(env, kind)
    collector = TorchRLCollector(GymWrapper(env), policy, frames_per_batch=100, total_frames=300)
    actions = torch.cat([rollout["action"] for rollout in collector])
    collector.shutdown()
    assert actions.shape == (300, *env.action_space.shape)
    assert all(env.action_space.contains(action) for action in actions.numpy())
    assert len(actions.unique()) > 150 or actions.unique().tolist() == [0, 1]


def test_in_torchrls_envs_a_memory_ends_with_the_episode():
    env = CanonicalEnv(gym.make("Pendulum-v1", max_episode_steps=7))
    policy = policy_for(env, OrnsteinUhlenbeck(0.05, theta=0.2))
    for parameter in policy.greedy.network.head("action").parameters():
        nn.init.zeros_(parameter)  # acts 0, the centre of [-2, 2]: what is stored is the noise
    tracked = TransformedEnv(GymWrapper(env), InitTracker())
    rollout = tracked.rollout(30, policy, break_when_any_done=False)
    assert rollout["is_init"].sum() == 5  # 30 steps of episodes of 7
    generator, x = torch.Generator().manual_seed(0), 0.0
    for action, is_init in zip(rollout["action"], rollout["is_init"], strict=True):
        x = 0.8 * (0.0 if is_init else x) + 0.05 * 2.0 * torch.randn(1, 1, generator=generator).item()
        assert action.item() == pytest.approx(x, abs=1e-6)
