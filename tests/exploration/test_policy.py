import copy

import gymnasium as gym
import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.collectors import Collector as TorchRLCollector
from torchrl.envs import GymWrapper, InitTracker, TransformedEnv

from mhrl.envs import Leaf
from mhrl.exploration import ExploringPolicy, Gaussian, GaussianNoise, OrnsteinUhlenbeck
from mhrl.heads import DeterministicHead, QHead
from mhrl.network import GreedyPolicy, HeadSpec, Network
from mhrl.trunks import IdentityTrunk


def policy_for(env, kind):
    space, size = env.action_space, env.observation_space.shape[0]
    trunk = IdentityTrunk({"observation": env.observation_space})
    heads = {"actor": DeterministicHead(size, space, [8]), "value": QHead(size, space, [8])}
    specs = {"actor": HeadSpec("action", (0,)), "value": HeadSpec("", ())}
    network = Network(trunk, heads, specs, (Leaf("action", "action", space),))
    return ExploringPolicy(GreedyPolicy(network), GaussianNoise(network, {"actor": kind}, 0))


@pytest.mark.parametrize("lead", [(4,), ()])
def test_forward_writes_what_act_returns(make_network, lead):
    torch.manual_seed(0)
    network = make_network()
    heads = {"arm": Gaussian(0.1), "gripper": Gaussian(0.1)}
    policy = ExploringPolicy(GreedyPolicy(network), GaussianNoise(network, heads, 0))
    twin = copy.deepcopy(policy)
    seen = torch.randn((*lead, 3))
    right = policy.act({"observation": seen}, 0)["action"]
    assert torch.equal(twin(TensorDict({"observation": seen}, lead))["action"], right)


def test_act_tells_the_noise_where_episodes_start(make_network):
    network = make_network()
    heads = dict.fromkeys(("arm", "gripper"), OrnsteinUhlenbeck())
    policy = ExploringPolicy(GreedyPolicy(network), GaussianNoise(network, heads, 0, num_envs=3))
    twin = copy.deepcopy(policy)
    seen, starts = {"observation": torch.randn(3, 3)}, torch.tensor([True, False, False])
    for frames, is_init in ((0, None), (3, starts), (6, None)):
        found, greedy = policy.act(seen, frames, is_init)["action"], twin.greedy.act(seen)["action"]
        assert torch.equal(found, twin.noise.perturb(greedy, is_init))
        assert policy.noise.frames == frames


@pytest.mark.filterwarnings("ignore:The env passed to Collector")
def test_torchrl_collector_stores_legal_actions():
    env = gym.make("Pendulum-v1")
    space, policy = env.action_space, policy_for(env, Gaussian(1.0))
    collector = TorchRLCollector(GymWrapper(env), policy, frames_per_batch=100, total_frames=300)
    actions = torch.cat([rollout["action"] for rollout in collector])
    collector.shutdown()
    assert actions.shape == (300, 1)
    assert all(space.contains(action) for action in actions.numpy())
    assert len(actions.unique()) > 150 and (actions.abs() == 2.0).any()


def test_in_torchrls_envs_a_memory_ends_with_the_episode():
    env = gym.make("Pendulum-v1", max_episode_steps=7)
    policy = policy_for(env, OrnsteinUhlenbeck(0.05, theta=0.2))
    for parameter in policy.greedy.network.head("actor").parameters():
        nn.init.zeros_(parameter)  # acts 0, the centre of [-2, 2]: what is stored is the noise
    tracked = TransformedEnv(GymWrapper(env), InitTracker())
    rollout = tracked.rollout(30, policy, break_when_any_done=False)
    assert rollout["is_init"].sum() == 5  # 30 steps of episodes of 7
    generator, x = torch.Generator().manual_seed(0), 0.0
    for action, is_init in zip(rollout["action"], rollout["is_init"], strict=True):
        x = 0.8 * (0.0 if is_init else x) + 0.05 * 2.0 * torch.randn(1, 1, generator=generator).item()
        assert action.item() == pytest.approx(x, abs=1e-6)
