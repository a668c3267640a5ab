import io

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn

from mhrl.envs import Leaf
from mhrl.exploration import ExploringPolicy, Gaussian, GaussianNoise, OrnsteinUhlenbeck
from mhrl.heads import DeterministicHead, QHead
from mhrl.network import GreedyPolicy, HeadSpec, Network
from mhrl.trunks import IdentityTrunk

HEADS = {"arm": (2, 0), "gripper": (1,)}
# Half-ranges by dimension: 2, 0.25, 10.
LOW, HIGH = [-1.0, 0.0, -10.0], [3.0, 0.5, 10.0]
CENTER = torch.tensor([1.0, 0.25, 0.0])


def network_of(make_network, **options):
    """Its greedy action is the centre of the box."""
    network = make_network(HEADS, low=LOW, high=HIGH, **options)
    for name in network.acting:
        for parameter in network.head(name).parameters():
            nn.init.zeros_(parameter)
    return network


def noise_of(network, seed=0, arm=None, gripper=None, num_envs=1):
    heads = {"arm": arm or Gaussian(0.1), "gripper": gripper or Gaussian(0.1)}
    return GaussianNoise(network, heads, seed, num_envs)


def observation(count):
    return {"observation": torch.zeros(count, 3)}


def test_a03_noise_is_scaled_by_each_half_range_and_by_each_head(make_network):
    network = network_of(make_network)
    noise = noise_of(network, arm=Gaussian(0.1), gripper=Gaussian(0.2))
    policy = ExploringPolicy(GreedyPolicy(network), noise)
    action = policy.act(observation(20_000), 0)["action"]
    assert action.shape == (20_000, 3)
    right = torch.tensor([0.1 * 2.0, 0.2 * 0.25, 0.1 * 10.0])
    torch.testing.assert_close(action.std(0), right, rtol=0.03, atol=0)
    # The standard error of the mean is below a hundredth of these bounds; a bias added twice would be far outside.
    assert ((action.mean(0) - CENTER).abs() < 0.01 * torch.tensor([2.0, 0.25, 10.0])).all()


def test_noise_is_independent_per_env_dimension_and_head(make_network):
    network = network_of(make_network)
    noise = noise_of(network)
    flat = (noise.perturb(CENTER.expand(20_000, 3)) - CENTER).T
    correlation = torch.corrcoef(torch.cat([flat, flat.roll(1, 1)]))
    assert (correlation - torch.eye(6)).abs().max() < 0.03
    again = noise.perturb(CENTER.expand(20_000, 3))
    assert not torch.equal(again[0], flat[:, 0] + CENTER) and len(again[:, 0].unique()) > 19_000


def test_a03_without_noise_the_action_is_the_greedy_one(make_network):
    torch.manual_seed(0)
    network = make_network(HEADS, low=LOW, high=HIGH)
    policy = ExploringPolicy(GreedyPolicy(network), noise_of(network, arm=Gaussian(0.0), gripper=Gaussian(0.0)))
    seen = {"observation": torch.randn(50, 3)}
    assert torch.equal(policy.act(seen, 0)["action"], policy.greedy.act(seen)["action"])
    assert len(policy.act(seen, 0)["action"][:, 0].unique()) == 50


def test_noisy_actions_are_clipped_to_the_box(make_network):
    network = network_of(make_network)
    action = noise_of(network, arm=Gaussian(5.0), gripper=Gaussian(5.0)).perturb(CENTER.expand(1000, 3))
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    assert (action >= low).all() and (action <= high).all()
    assert (action == low).any(0).all() and (action == high).any(0).all() and ((action > low) & (action < high)).any()


@pytest.mark.parametrize(
    ("frames", "right"), [(0, 0.5), (25, 0.4), (50, 0.3), (100, 0.1), (101, 0.1), (10_000_000, 0.1)]
)
def test_linear_schedule_over_frames(make_network, frames, right):
    network = network_of(make_network)
    noise = noise_of(network, arm=Gaussian(0.5, std_end=0.1, anneal_frames=100), gripper=Gaussian(0.2))
    tiny = noise_of(network, arm=Gaussian(0.001), gripper=Gaussian(0.001))
    found, reference = (
        ExploringPolicy(GreedyPolicy(network), each).act(observation(500), frames)["action"] - CENTER
        for each in (noise, tiny)
    )
    # One seed draws the same numbers, so the noise scales with the standard deviation where nothing is clipped.
    free = (found.abs() < 0.99 * torch.tensor([2.0, 0.25, 10.0])).all(1)
    assert free.sum() > 300
    ratio = found[free].std(0) / reference[free].std(0)
    torch.testing.assert_close(ratio, torch.tensor([right, 0.2, right]) / 0.001, rtol=1e-3, atol=0)


def test_d01_same_seed_same_noise_other_seed_other_noise(make_network):
    network = network_of(make_network)
    first, same, other = (noise_of(network, seed).perturb(CENTER.expand(4, 3)) for seed in (3, 3, 4))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_d01_the_global_generator_is_neither_read_nor_moved(make_network):
    network = network_of(make_network)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = noise_of(network).perturb(CENTER.expand(4, 3))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(123)
    assert torch.equal(first, noise_of(network).perturb(CENTER.expand(4, 3)))


def test_g01_generator_and_frames_survive_a_safe_file(make_network):
    network = network_of(make_network)
    schedule = Gaussian(0.5, std_end=0.0, anneal_frames=100)
    noise = noise_of(network, arm=schedule)
    noise.step(40)
    noise.perturb(CENTER.expand(3, 3))
    file = io.BytesIO()
    torch.save(noise.state_dict(), file)
    file.seek(0)
    restored = noise_of(network, seed=99, arm=schedule)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert restored.frames.item() == 40
    expected = noise.perturb(CENTER.expand(5, 3))
    assert torch.equal(restored.perturb(CENTER.expand(5, 3)), expected)
    fresh = noise_of(network, seed=99, arm=schedule)
    assert not torch.equal(fresh.perturb(CENTER.expand(5, 3)), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a09_td_actions_have_the_dtype_of_the_space_and_are_inside(dtype):
    space = Box(0.1, 0.3, (1,), dtype)
    trunk = IdentityTrunk({"observation": Box(-1, 1, (3,))})
    heads = {"actor": DeterministicHead(3, space, [4]), "value": QHead(3, space, [4])}
    specs = {"actor": HeadSpec("action", (0,)), "value": HeadSpec("", ())}
    network = Network(trunk, heads, specs, (Leaf("action", "action", space),))
    policy = ExploringPolicy(GreedyPolicy(network), GaussianNoise(network, {"actor": Gaussian(3.0)}, 0))
    actions = policy(TensorDict({"observation": torch.randn(10_000, 3)}, [10_000]))["action"].numpy()
    assert all(space.contains(action) for action in actions)
    assert np.isclose(actions, space.low).any() and np.isclose(actions, space.high).any()


def test_zero_width_dimension_gets_no_noise(make_network):
    network = make_network({"arm": (1, 0)}, low=[-1, 2], high=[1, 2])
    noise = GaussianNoise(network, {"arm": Gaussian(1.0)}, 0)
    action = noise.perturb(torch.tensor([[0.0, 2.0]]).expand(100, 2))
    assert (action[:, 1] == 2.0).all() and action[:, 0].std() > 0.1


def test_heads_of_different_kinds_do_not_disturb_each_other(make_network):
    network, middle = network_of(make_network), CENTER.expand(4, 3)
    memory = OrnsteinUhlenbeck(0.1, theta=0.3)
    mixed = noise_of(network, arm=memory, gripper=Gaussian(0.2), num_envs=4)
    without = noise_of(network, arm=Gaussian(0.1), gripper=Gaussian(0.2), num_envs=4)
    within = noise_of(network, arm=memory, gripper=memory, num_envs=4)
    for _ in range(5):
        both, plain, drifting = (noise.perturb(middle) for noise in (mixed, without, within))
        assert torch.equal(both[:, 1], plain[:, 1]) and torch.equal(both[:, [0, 2]], drifting[:, [0, 2]])
    assert not torch.equal(both[:, 0], plain[:, 0]) and not torch.equal(both[:, 1], drifting[:, 1])


def test_a_memory_is_cleared_at_the_start_of_an_episode_of_that_env_only(make_network):
    network, middle = network_of(make_network), CENTER.expand(3, 3)
    kind = OrnsteinUhlenbeck(0.02)
    noise, endless, forgetful = (
        noise_of(network, arm=each, gripper=each, num_envs=3) for each in (kind, kind, Gaussian(0.02))
    )
    for _ in range(10):
        for each in (noise, endless, forgetful):
            each.perturb(middle)
    starts = torch.tensor([False, True, False])
    found, right, fresh = noise.perturb(middle, starts), endless.perturb(middle), forgetful.perturb(middle)
    assert torch.equal(found[[0, 2]], right[[0, 2]])
    # With dt = 1 the first step away from 0 is that of plain Gaussian noise.
    assert torch.equal(found[1], fresh[1]) and not torch.equal(found[1], right[1])
    # And it goes on from there: 0.85 of the last noise and what is new.
    last = found[1] - CENTER
    torch.testing.assert_close(noise.perturb(middle)[1], forgetful.perturb(middle)[1] + 0.85 * last)


def test_g01_a_memory_survives_a_safe_file_in_the_middle_of_an_episode(make_network):
    network, middle, kind = network_of(make_network), CENTER.expand(3, 3), OrnsteinUhlenbeck()
    noise = noise_of(network, arm=kind, num_envs=3)
    for _ in range(7):
        noise.perturb(middle)
    file = io.BytesIO()
    torch.save(noise.state_dict(), file)
    file.seek(0)
    restored = noise_of(network, seed=99, arm=kind, num_envs=3)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        assert torch.equal(restored.perturb(middle), noise.perturb(middle))


def test_a_memory_is_of_the_envs_it_was_built_for(make_network):
    network = network_of(make_network)
    noise = noise_of(network, arm=OrnsteinUhlenbeck(), num_envs=3)
    with pytest.raises(ValueError, match="noise with a memory is for 3 envs, got actions of 4"):
        noise.perturb(CENTER.expand(4, 3))


def test_forward_reads_where_episodes_start(make_network):
    network = network_of(make_network)
    noise, twin = (noise_of(network, arm=OrnsteinUhlenbeck(), num_envs=2) for _ in range(2))
    starts = torch.tensor([[True], [False]])
    for entries in ({}, {"is_init": starts}, {}):
        action = noise(TensorDict({"action": CENTER.expand(2, 3), **entries}, [2]))["action"]
        assert torch.equal(action, twin.perturb(CENTER.expand(2, 3), entries.get("is_init")))
    assert not torch.equal(action, noise.perturb(CENTER.expand(2, 3), starts))
