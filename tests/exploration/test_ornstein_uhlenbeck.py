import numpy as np
import pytest
import torch

from mhrl.exploration import ActionNoise, OrnsteinUhlenbeck

# Half-ranges: 2, 0.25 and, of the branch of 21 values, 10 values.
LOW, HIGH = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([3.0, 0.5, 20.0])
HALF_RANGE, CENTER = torch.tensor([2.0, 0.25, 10.0]), torch.tensor([1.0, 0.25, 10.0])


def noise_of(make_places, num_envs, arm, gear=None):
    places = make_places({"arm": [(-1.0, 3.0), (0.0, 0.5)]}, {"gear": 21})
    return ActionNoise(places, {"arm": arm, "gear": gear or arm}, 0, num_envs)


def greedy(make_choice, count):
    return make_choice(count, [1.0, 0.25], [10])


# Of var = std^2 dt / (1 - (1 - theta dt)^2), by hand: .04 / .2775, .04 / .75, and .004 / .19.
@pytest.mark.parametrize(
    ("theta", "dt", "std", "decay"), [(0.15, 1.0, 0.379663, 0.85), (0.5, 1.0, 0.230940, 0.5), (1.0, 0.1, 0.145095, 0.9)]
)
def test_it_settles_at_the_closed_form_variance_and_autocorrelation(make_places, make_choice, theta, dt, std, decay):
    noise = noise_of(make_places, 10_000, OrnsteinUhlenbeck(0.2, theta=theta, dt=dt))
    for _ in range(60):  # 0.9 ** 120 of the variance is missing at most
        noise.perturb(greedy(make_choice, 10_000))
    x = [noise.x.clone() / HALF_RANGE]
    for _ in range(4):
        noise.perturb(greedy(make_choice, 10_000))
        x.append(noise.x.clone() / HALF_RANGE)
    torch.testing.assert_close(x[0].std(0), torch.full((3,), std), rtol=0.03, atol=0)
    assert (x[0].mean(0).abs() < 5 * std / 100).all()  # five standard errors
    for lag in (1, 2, 4):
        found = (x[0] * x[lag]).mean(0) / (x[0].std(0) * x[lag].std(0))
        torch.testing.assert_close(found, torch.full((3,), decay**lag), rtol=0, atol=0.04)
    correlation = torch.corrcoef(torch.cat([x[0].T, x[0].T.roll(1, 1)]))
    assert (correlation - torch.eye(6)).abs().max() < 0.05  # independent per dimension and env
    assert std == pytest.approx(0.2 / np.sqrt(theta * (2 - theta * dt)), rel=1e-5)  # as the docstring has it


def test_each_step_is_the_recursion_with_episodes_that_end_at_different_times(make_places, make_choice):
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(0)
    arm = OrnsteinUhlenbeck(0.02, std_end=0.01, anneal_frames=80, theta=0.3, dt=0.5)
    noise = noise_of(make_places, 4, arm, OrnsteinUhlenbeck(0.05, theta=0.1))
    theta_dt, root_dt = np.array([0.15, 0.15, 0.1]), np.array([np.sqrt(0.5), np.sqrt(0.5), 1.0])
    x = np.zeros((4, 3))
    for t in range(60):
        starts = rng.random(4) < 0.15
        arm_std = 0.02 + (0.01 - 0.02) * min(1, 2 * t / 80)
        std = HALF_RANGE.numpy() * [arm_std, arm_std, 0.05]
        x[starts] = 0
        x += -theta_dt * x + std * root_dt * torch.randn(4, 3, generator=generator).numpy()
        noise.step(2 * t)
        action, index = noise.perturb(greedy(make_choice, 4), torch.from_numpy(starts))
        np.testing.assert_allclose(noise.x.numpy(), x, rtol=0, atol=2e-6)
        np.testing.assert_allclose(action.numpy(), [1.0, 0.25] + x[:, :2], rtol=0, atol=2e-6)
        assert np.array_equal(index[:, 0].numpy(), np.rint(10 + x[:, 2]))


def test_actions_are_clipped_and_the_memory_is_not(make_places, make_choice):
    noise = noise_of(make_places, 500, OrnsteinUhlenbeck(1.0))
    for _ in range(20):
        action = torch.cat(noise.perturb(greedy(make_choice, 500)), -1)
    assert (action >= LOW).all() and (action <= HIGH).all()
    assert (action == LOW).any(0).all() and (action == HIGH).any(0).all()
    # 1 / sqrt(0.2775) half-ranges.
    torch.testing.assert_close((noise.x / HALF_RANGE).std(0), torch.full((3,), 1.8983), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"theta": 0.0}, "exploration.theta is 0.0"),
        ({"theta": float("nan")}, "exploration.theta is nan"),
        ({"dt": -1.0}, "exploration.dt is -1.0"),
        ({"dt": float("inf")}, "exploration.dt is inf"),
        ({"theta": 3.0, "dt": 0.5}, r"exploration.theta \* dt is 1.5"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        OrnsteinUhlenbeck(**fields)
