import math

import numpy as np
import pytest
import torch

from mhrl.exploration import ActionNoise, EpsilonGreedy, Gaussian, OrnsteinUhlenbeck

COUNT = 50_000
BOXES = {"arm": [(-1.0, 3.0), (0.0, 0.5)], "gripper": [(-10.0, 10.0)]}


def assert_share(found, share):
    """The share of True in `found`, within five binomial standard errors."""
    assert abs(found.double().mean().item() - share) <= 5 * math.sqrt(share * (1 - share) / found.numel())


def test_each_head_acts_at_random_as_often_as_it_says(make_places, make_choice):
    places = make_places(BOXES, {"gear": 5, "light": 2})
    shares = {"arm": 0.3, "gripper": 0.0, "gear": 0.5, "light": 1.0}
    heads = {name: EpsilonGreedy(epsilon=share) for name, share in shares.items()}
    greedy = make_choice(COUNT, [1.0, 0.25, 0.0], [2, 0])
    action, index = ActionNoise(places, heads, 0).perturb(greedy)
    assert index.dtype == torch.int64
    moved = action != greedy.action
    assert torch.equal(moved[:, 0], moved[:, 1])  # the head as a whole
    assert_share(moved[:, 0], 0.3)
    assert not moved[:, 2].any()
    for value in range(5):  # 0.5 is random over five values, the rest greedy
        assert_share(index[:, 0] == value, 0.1 + 0.5 * (value == 2))
    assert_share(index[:, 1] == 0, 0.5)
    # Heads and envs are drawn apart.
    joint = torch.stack([moved[:, 0], index[:, 0] != 2, index[:, 1] == 1]).float()
    joint = torch.cat([joint, joint.roll(1, 1)])
    assert (torch.corrcoef(joint) - torch.eye(6)).abs().max() < 5 / math.sqrt(COUNT)


def test_random_actions_are_uniform_over_the_box(make_places, make_choice):
    places = make_places(BOXES)
    noise = ActionNoise(places, dict.fromkeys(places.acting, EpsilonGreedy(epsilon=1.0)), 0)
    action, _ = noise.perturb(make_choice(COUNT, [3.0, 0.0, 0.0]))
    unit = (action - torch.tensor([-1.0, 0.0, -10.0])) / torch.tensor([4.0, 0.5, 20.0])
    assert unit.min() >= 0 and unit.max() <= 1
    steps = torch.arange(1, COUNT + 1) / COUNT
    for column in unit.T:  # Kolmogorov-Smirnov: one seed in 1,000 is above
        assert (column.sort().values - steps).abs().max() < 1.95 / math.sqrt(COUNT)
    assert (torch.corrcoef(unit.T) - torch.eye(3)).abs().max() < 5 / math.sqrt(COUNT)


def test_random_values_are_uniform_over_those_that_a_mask_allows(make_places, make_choice):
    places = make_places(branches={"gear": 6, "light": 2})
    noise = ActionNoise(places, dict.fromkeys(places.acting, EpsilonGreedy(epsilon=1.0)), 0)
    masks = [
        [[1, 0, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]],
        [[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]],
        [[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]],
    ]
    mask = torch.tensor(masks, dtype=torch.bool).repeat(20_000, 1, 1)
    _, index = noise.perturb(make_choice(60_000, index=[0, 0], mask=mask))
    for env in range(3):
        for branch in range(2):
            allowed = masks[env][branch]
            for value, is_allowed in enumerate(allowed):
                assert_share(index[env::3, branch] == value, is_allowed / sum(allowed))


def test_a_branch_of_many_values_reaches_all_of_them(make_places, make_choice):
    noise = ActionNoise(make_places(branches={"gear": 200}), {"gear": EpsilonGreedy(epsilon=1.0)}, 0)
    _, index = noise.perturb(make_choice(20_000, index=[7]))
    counts = np.bincount(index.flatten().numpy(), minlength=200)
    assert counts.min() > 40 and counts.max() < 160 and len(counts) == 200  # 100 each, standard deviation 10
    # 3.29 standard deviations of chi square with 199 degrees of freedom: one seed in 1,000 on either side.
    assert abs(((counts - 100) ** 2 / 100).sum() - 199) < 3.29 * math.sqrt(2 * 199)


@pytest.mark.parametrize(
    ("frames", "right"), [(0, 1.0), (100, 1.0), (150, 0.8), (200, 0.6), (300, 0.2), (301, 0.2), (10**7, 0.2)]
)
def test_epsilon_falls_linearly_from_its_start(make_places, make_choice, frames, right):
    places = make_places({"arm": [(-1.0, 1.0)]}, {"gear": 4})
    schedule = EpsilonGreedy(epsilon=1.0, epsilon_end=0.2, anneal_start=100, anneal_frames=200)
    noise = ActionNoise(places, {"arm": schedule, "gear": EpsilonGreedy(epsilon=0.4)}, 0)
    noise.step(frames)
    action, index = noise.perturb(make_choice(COUNT, [0.0], [0]))
    assert_share(action[:, 0] != 0, right)
    assert_share(index[:, 0] != 0, 0.4 * 3 / 4)


def test_an_epsilon_that_only_rises_later_is_drawn(make_places, make_choice):
    kind = Gaussian(0.0, epsilon=0.0, epsilon_end=1.0, anneal_frames=10)
    noise = ActionNoise(make_places({"arm": [(-1.0, 1.0)]}), {"arm": kind}, 0)
    assert not noise.perturb(make_choice(100, [0.0]))[0].any()
    noise.step(10)
    assert noise.perturb(make_choice(100, [0.0]))[0].all()


@pytest.mark.parametrize("kind", [Gaussian, EpsilonGreedy, OrnsteinUhlenbeck])
def test_noise_and_random_actions_go_together(make_places, make_choice, kind):
    """What is not random is noisy: against the same noise without random actions."""
    places, seed = make_places({"arm": [(-1.0, 1.0)]}, {"gear": 101}), 5
    both, plain = (
        ActionNoise(places, dict.fromkeys(places.acting, kind(std=0.02, epsilon=epsilon)), seed, num_envs=10_000)
        for epsilon in (0.25, 0.0)
    )
    greedy = make_choice(10_000, [0.0], [50])
    (action, index), (noisy, noisy_index) = both.perturb(greedy), plain.perturb(greedy)
    assert_share(action != noisy, 0.25)
    assert_share(index != noisy_index, 0.25 * 0.98)  # about as often a random value is that of the noise by chance
    assert noisy.std().item() == pytest.approx(0.02, rel=0.05)
    assert noisy_index.double().std().item() == pytest.approx(math.sqrt(1 + 1 / 12), rel=0.05)
    far = action[action != noisy]
    assert far.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.05)


def test_a_random_action_leaves_the_memory_as_it_is(make_places, make_choice):
    places = make_places({"arm": [(-1.0, 1.0)]}, {"gear": 11})
    noise = ActionNoise(places, dict.fromkeys(places.acting, OrnsteinUhlenbeck(0.1, epsilon=1.0)), 0, num_envs=3)
    generator, x = torch.Generator().manual_seed(0), torch.zeros(3, 2)
    for _ in range(4):
        noise.perturb(make_choice(3, [0.0], [5]))
        x = 0.85 * x + 0.1 * torch.tensor([1.0, 5.0]) * torch.randn(3, 2, generator=generator)
        torch.rand(3, 2, generator=generator)
        torch.rand(3, 2, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(noise.x, x)


def test_a_random_value_of_an_unrounded_branch_is_whole(make_places, make_choice):
    places = make_places(branches={"joint": (5, False)})
    _, index = ActionNoise(places, {"joint": Gaussian(0.1, round=False, epsilon=1.0)}, 0).perturb(
        make_choice(1000, index=[2])
    )
    assert index.dtype == torch.float32 and index.unique().tolist() == [0, 1, 2, 3, 4]


def test_without_std_and_epsilon_the_choice_is_the_greedy_one(make_places, make_choice):
    places = make_places({"arm": [(-1.0, 3.0)]}, {"gear": 7, "light": 3})
    heads = {"arm": Gaussian(0.0), "gear": EpsilonGreedy(epsilon=0.0), "light": Gaussian(0.0, redraw=True)}
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(500, 1, generator=generator) * 4 - 1
    index = torch.stack([torch.randint(n, (500,), generator=generator) for n in (7, 3)], -1)
    greedy = make_choice(500, action, index)
    action, index = ActionNoise(places, heads, 0).perturb(greedy)
    assert torch.equal(action, greedy.action) and torch.equal(index, greedy.index)
