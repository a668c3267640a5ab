"""Conflict: its optimum, what one feature can earn, and that the losses of its two branches conflict."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from mhrl.envs import capture, restore
from mhrl.envs.probe import Conflict

ANGLES = np.pi * (np.arange(360) - 179.5) / 180  # midpoints: none on an axis
D = torch.float64
CHOICES = tuple(itertools.product((0, 1), (0, 1)))


def act(left=0, right=0):
    return {"left": left, "right": right}


def reward(env, phi, left, right):
    env.phi = phi
    return env.step(act(left, right))[1]


def brute_force(scale):
    """Every angle with every choice: observations `[N, 2]`, choices `[N, 2]` and rewards `[N]`, from the env."""
    env = Conflict(10**9, scale)
    env.reset(seed=0)
    cases = [(phi, left, right) for phi in ANGLES for left, right in CHOICES]
    x = np.array([[np.cos(phi), np.sin(phi)] for phi, _, _ in cases])
    chosen = np.array([[left, right] for _, left, right in cases])
    r = np.array([reward(env, *case) for case in cases])
    return torch.from_numpy(x), torch.from_numpy(chosen), torch.from_numpy(r)


def rows_at(trunk, scale):
    """Gradients of both branches' losses w.r.t. features and trunk, each branch at its best least-squares fit."""
    x, chosen, r = brute_force(scale)
    features = trunk(x)
    flat = features.detach().numpy()
    at_features, at_parameters = [], []
    for branch in range(2):
        head = nn.Linear(1, 2).double()
        for value in range(2):
            taken = (chosen[:, branch] == value).numpy()
            design = np.column_stack([flat[taken, 0], np.ones(taken.sum())])
            slope, offset = np.linalg.lstsq(design, r.numpy()[taken], rcond=None)[0]
            head.weight.data[value, 0], head.bias.data[value] = slope, offset
        loss = (head(features).gather(1, chosen[:, branch, None]).squeeze(1) - r).square().mean()
        gradients = torch.autograd.grad(loss, [features, *trunk.parameters()], retain_graph=True)
        at_features.append(gradients[0].flatten())
        at_parameters.append(torch.cat([gradient.flatten() for gradient in gradients[1:]]))
    return at_features, at_parameters


def linear(degrees):
    trunk = nn.Linear(2, 1, bias=False).double()
    trunk.weight.data = torch.tensor([[math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]], dtype=D)
    return trunk


def cosine(a, b):
    return (a @ b / a.norm() / b.norm()).item()


@pytest.mark.parametrize(
    ("scale", "degrees", "at_features"),
    [
        (1.0, 45, -1 / 3),  # w_1^2 = w_2^2 = |w_1 w_2| = 1/2: -(1/2) / sqrt(3/2 * 3/2)
        (2.0, 45, -1 / math.sqrt(13.5)),  # -2 / 2 / sqrt(4.5 * 3)
        (2.0, 30, -math.sqrt(3 / 68)),  # -2 sqrt(3)/4 / sqrt(4.25 * 4)
        (1.0, 135, -1 / 3),  # whatever the signs
        (2.0, -30, -math.sqrt(3 / 68)),
    ],
)
def test_the_rows_conflict_at_both_levels(scale, degrees, at_features):
    features, (left, right) = rows_at(linear(degrees), scale)
    assert cosine(*features) == pytest.approx(at_features, abs=1e-9)
    assert cosine(left, right) == pytest.approx(-1, abs=1e-9)
    torch.testing.assert_close(right, -(scale**2) * left)


def test_the_inner_product_is_what_the_docstring_says():
    """At 45 degrees, scale 1: a = b = pi/2 * 0.7071, s^2 = 1/2; each loss's factor is 2, and the mean is over N."""
    features, _ = rows_at(linear(45), 1.0)
    count = len(features[0])
    assert (features[0] @ features[1]).item() == pytest.approx(-(((math.pi / 2) ** 2 / 2) ** 2) / 2 * 4 / count)


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_conflict_at_the_output_of_any_unit(seed):
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Tanh()).double()
    features, _ = rows_at(trunk, 1.25)
    assert cosine(*features) < -1e-3


def test_the_sum_of_the_losses_gives_the_feature_to_the_louder_branch():
    left, right = rows_at(linear(60), 1.25)[1]
    towards_right = torch.tensor([-math.sin(math.radians(60)), math.cos(math.radians(60))], dtype=D)
    assert (left + right) @ towards_right < 0  # the gradient of the sum falls where the angle grows


@pytest.mark.parametrize("degrees", [0, 30, 45, 51.34, 90])
def test_what_a_linear_feature_earns(degrees):
    env = Conflict(10**9, 1.25)
    env.reset(seed=0)
    w = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    feature = w[0] * np.cos(ANGLES) + w[1] * np.sin(ANGLES)
    earned = [reward(env, phi, int(w[0] * f > 0), int(w[1] * f > 0)) for phi, f in zip(ANGLES, feature, strict=True)]
    right = {0: 1.0, 30: 1.4910, 45: 1.5910, 51.34: 1.6008, 90: 1.25}  # cos + 1.25 sin; the most is sqrt(1 + 1.25^2)
    assert np.mean(earned) == pytest.approx(right[degrees], abs=2e-3)


def test_the_optimum_and_what_random_actions_earn():
    env = Conflict(10**9, 1.25)
    env.reset(seed=0)
    best = [reward(env, phi, int(np.cos(phi) > 0), int(np.sin(phi) > 0)) for phi in ANGLES]
    assert np.mean(best) == pytest.approx(2.25, abs=1e-4)
    assert brute_force(1.25)[2].mean().item() == pytest.approx(0, abs=1e-12)
    for phi, most in zip(ANGLES, best, strict=True):
        assert max(reward(env, phi, *choices) for choices in CHOICES) == most


def test_rewards_worked_out_by_hand():
    env = Conflict(10**9, 2.0)
    env.reset(seed=0)
    assert reward(env, 0.0, 1, 0) == pytest.approx(math.pi / 2)
    assert reward(env, 0.0, 0, 0) == pytest.approx(-math.pi / 2)
    assert reward(env, math.pi / 2, 0, 1) == pytest.approx(math.pi)
    assert reward(env, -math.pi / 6, 1, 0) == pytest.approx(math.pi / 2 * (math.sqrt(3) / 2 + 1))


def test_spaces_and_an_episode():
    env = Conflict(2)
    assert list(env.action_space) == ["left", "right"] and env.scale == 1.25
    assert env.action_space["left"] == env.action_space["right"] == Discrete(2)
    assert env.observation_space == Box(-1, 1, (2,))
    first, _ = env.reset(seed=0)
    second, _, terminated, truncated, _ = env.step(act())
    assert (terminated, truncated) == (False, False) and not np.array_equal(first, second)
    assert env.step(act())[2:4] == (True, False)


def test_observations_are_drawn_as_said():
    env = Conflict()
    seen = np.array([env.reset(seed=0)[0], *(env.reset()[0] for _ in range(4000))])
    assert np.linalg.norm(seen, axis=1) == pytest.approx(1, abs=1e-6)
    assert seen.mean(0) == pytest.approx([0, 0], abs=0.05)
    assert np.cov(seen.T) == pytest.approx(np.eye(2) / 2, abs=0.03)


@pytest.mark.parametrize("wrong", [{"left": 2}, {"left": 1.0}, {"right": True}, {"right": np.array(1)}, {"up": 1}])
def test_what_is_not_in_the_space_or_of_another_type_is_refused(wrong):
    env = Conflict()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="is not in Dict"):
        env.step({**act(), **wrong})


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ValueError, match="scale is"):
        Conflict(scale=scale)


def test_an_episode_in_the_middle_is_captured_and_restored(through_a_file):
    one, two = Conflict(3), Conflict(3)
    one.reset(seed=3)
    one.step(act())
    two.reset(seed=9)
    restore(two, through_a_file(capture(one)))
    for _ in range(2):
        (a, *mine), (b, *yours) = one.step(act(1, 0)), two.step(act(1, 0))
        np.testing.assert_array_equal(a, b, strict=True)
        assert mine == yours
