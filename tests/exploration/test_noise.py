import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.exploration import ActionNoise, EpsilonGreedy, Gaussian, OrnsteinUhlenbeck
from mhrl.policy import Choice

# Half-ranges by dimension: 2, 0.25, 10.
BOXES = {"arm": [(-1.0, 3.0), (0.0, 0.5)], "gripper": [(-10.0, 10.0)]}
LOW, HIGH, HALF_RANGE = torch.tensor([-1.0, 0, -10]), torch.tensor([3.0, 0.5, 10]), torch.tensor([2.0, 0.25, 10])
CENTER = [1.0, 0.25, 0.0]


def noise_of(make_places, seed=0, arm=None, gripper=None, num_envs=1):
    heads = {"arm": arm or Gaussian(0.1), "gripper": gripper or Gaussian(0.1)}
    return ActionNoise(make_places(BOXES), heads, seed, num_envs)


def in_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a03_noise_is_scaled_by_each_half_range_and_by_each_head(make_places, make_choice):
    action, index = noise_of(make_places, gripper=Gaussian(0.2)).perturb(make_choice(20_000, CENTER))
    assert action.shape == (20_000, 3) and index.shape == (20_000, 0) and index.dtype == torch.int64
    right = torch.tensor([0.1 * 2.0, 0.1 * 0.25, 0.2 * 10.0])
    torch.testing.assert_close(action.std(0), right, rtol=0.03, atol=0)
    # The standard error of the mean is below a hundredth of these bounds; a bias added twice would be far outside.
    assert ((action.mean(0) - torch.tensor(CENTER)).abs() < 0.01 * HALF_RANGE).all()


def test_noise_is_independent_per_env_dimension_and_head(make_places, make_choice):
    places, greedy = make_places(BOXES, {"gear": 101}), make_choice(20_000, CENTER, [50])
    noise = ActionNoise(places, dict.fromkeys(places.acting, Gaussian(0.1)), 0)
    flat = torch.cat(noise.perturb(greedy), -1).T
    correlation = torch.corrcoef(torch.cat([flat, flat.roll(1, 1)]))
    assert (correlation - torch.eye(8)).abs().max() < 0.03
    again, _ = noise.perturb(greedy)
    assert not torch.equal(again[0], flat[:3, 0]) and len(again[:, 0].unique()) > 19_000


def test_a03_without_noise_the_action_is_the_greedy_one(make_places):
    noise = noise_of(make_places, arm=Gaussian(0.0), gripper=Gaussian(0.0))
    greedy = LOW + (HIGH - LOW) * torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise.perturb(Choice(greedy, torch.zeros(50, 0, dtype=torch.long), None))[0], greedy)


def test_noisy_actions_are_clipped_to_the_box(make_places, make_choice):
    action, _ = noise_of(make_places, arm=Gaussian(5.0), gripper=Gaussian(5.0)).perturb(make_choice(1000, CENTER))
    assert (action >= LOW).all() and (action <= HIGH).all()
    assert (action == LOW).any(0).all() and (action == HIGH).any(0).all() and ((action > LOW) & (action < HIGH)).any()


@pytest.mark.parametrize(
    ("frames", "right"),
    [(0, 0.5), (20, 0.5), (45, 0.4), (70, 0.3), (120, 0.1), (121, 0.1), (10_000_000, 0.1)],
)
def test_linear_schedule_over_frames(make_places, make_choice, frames, right):
    arm = Gaussian(0.5, std_end=0.1, anneal_start=20, anneal_frames=100)
    noise = noise_of(make_places, arm=arm, gripper=Gaussian(0.2))
    tiny = noise_of(make_places, arm=Gaussian(0.001), gripper=Gaussian(0.001))
    noise.step(frames)
    found, reference = (each.perturb(make_choice(500, CENTER))[0] - torch.tensor(CENTER) for each in (noise, tiny))
    # One seed draws the same numbers, so the noise scales with the standard deviation where nothing is clipped.
    free = (found.abs() < 0.99 * HALF_RANGE).all(1)
    assert free.sum() > 300
    ratio = found[free].std(0) / reference[free].std(0)
    torch.testing.assert_close(ratio, torch.tensor([right, right, 0.2]) / 0.001, rtol=1e-3, atol=0)


def test_d01_same_seed_same_noise_other_seed_other_noise(make_places, make_choice):
    greedy = make_choice(4, CENTER)
    first, same, other = (noise_of(make_places, seed).perturb(greedy)[0] for seed in (3, 3, 4))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_d01_the_global_generator_is_neither_read_nor_moved(make_places, make_choice):
    torch.manual_seed(0)
    before, kind = torch.get_rng_state(), Gaussian(0.1, redraw=True, epsilon=0.5)
    first = noise_of(make_places, arm=kind).perturb(make_choice(4, CENTER))[0]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(123)
    assert torch.equal(first, noise_of(make_places, arm=kind).perturb(make_choice(4, CENTER))[0])


def test_zero_width_dimension_gets_no_noise(make_places, make_choice):
    places = make_places({"arm": [(-1.0, 1.0), (2.0, 2.0)]}, {"gear": 1})
    for kind in (Gaussian(1.0), Gaussian(1.0, redraw=True), EpsilonGreedy(epsilon=1.0), OrnsteinUhlenbeck(1.0)):
        noise = ActionNoise(places, dict.fromkeys(places.acting, kind), 0, num_envs=100)
        action, index = noise.perturb(make_choice(100, [0.0, 2.0], [0]))
        assert (action[:, 1] == 2.0).all() and action[:, 0].std() > 0.1 and not index.any()


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize(("dims", "branches"), [(2, 0), (0, 3), (2, 3)])
def test_any_batch_and_any_number_of_dimensions_and_branches(make_places, lead, dims, branches):
    places = make_places({f"box{i}": [(-1.0, 1.0)] for i in range(dims)}, {f"gear{i}": 4 for i in range(branches)})
    noise = ActionNoise(places, dict.fromkeys(places.acting, Gaussian(1.0, redraw=True, epsilon=0.5)), 0)
    for mask in (None, torch.ones(*lead, branches, 4 if branches else 1, dtype=torch.bool)):
        choice = Choice(torch.zeros(*lead, dims), torch.ones(*lead, branches, dtype=torch.long), mask)
        action, index = noise.perturb(choice)
        assert action.shape == (*lead, dims) and index.shape == (*lead, branches)
        assert (action.abs() <= 1).all() and ((index >= 0) & (index < 4)).all()


@pytest.mark.parametrize(
    "kind",
    [Gaussian(0.8), Gaussian(0.8, redraw=True, epsilon=0.3), EpsilonGreedy(), OrnsteinUhlenbeck(0.5, epsilon=0.2)],
)
@pytest.mark.parametrize("rounded", [True, False])
def test_b06_no_illegal_action_in_ten_thousand(make_places, kind, rounded):
    """Masks ragged over envs and branches, drawn anew in each step."""
    sizes, rng = (7, 2, 33, 1), np.random.default_rng(0)
    places = make_places({"arm": [(-1.0, 1.0)]}, {f"gear{n}": (n, rounded) for n in sizes})
    noise = ActionNoise(places, dict.fromkeys(places.acting, kind), 0, num_envs=100)
    seen = [set() for _ in sizes]
    for _ in range(100):
        mask = (rng.random((100, 4, 33)) < rng.random((100, 4, 1))) & (np.arange(33) < np.array(sizes)[:, None])
        first = (rng.random((100, 4)) * sizes).astype(int)
        np.put_along_axis(mask, first[..., None], True, -1)  # allows one at least, which is the greedy one
        choice = Choice(torch.zeros(100, 1), torch.as_tensor(first), torch.as_tensor(mask))
        action, index = noise.perturb(choice)
        assert index.dtype == torch.int64 and (action.abs() <= 1).all()
        assert np.take_along_axis(mask, index.numpy()[..., None], -1).all()
        for branch, values in enumerate(seen):
            values.update(index[:, branch].tolist())
    assert [len(values) for values in seen] == list(sizes)


@given(st.data())
def test_a_branch_takes_the_nearest_allowed_value(make_places, data):
    """Against a search over the allowed values, one by one."""
    n, seed = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 1000))
    allowed = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    greedy, std = data.draw(st.integers(0, n - 1)), data.draw(st.sampled_from([0.0, 0.3, 2.0]))
    mask = torch.tensor([value in allowed for value in range(n)])
    noise = ActionNoise(make_places(branches={"gear": n}), {"gear": Gaussian(std)}, seed)
    _, index = noise.perturb(Choice(torch.zeros(20, 0), torch.full((20, 1), greedy), mask.expand(20, 1, n)))
    eps = torch.randn(20, 1, generator=torch.Generator().manual_seed(seed)).double()
    for found, value in zip(index, greedy + eps * std * (n - 1) / 2, strict=True):
        clipped = min(max(value.item(), 0), n - 1)
        assert found.item() == min(allowed, key=lambda one: (abs(one - clipped), one))


def test_of_two_values_equally_near_the_lower_is_taken(make_places, make_choice):
    noise = ActionNoise(
        make_places(branches={"gear": 7, "light": 7}), dict.fromkeys(("gear", "light"), Gaussian(0.0)), 0
    )
    mask = [[1, 0, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 1, 0]]  # 3 is between 0 and 6; 4 is between 3 and 5
    assert noise.perturb(make_choice(1, index=[3, 4], mask=mask))[1].tolist() == [[0, 3]]


def test_what_a_call_draws_is_as_documented(make_places, make_choice):
    """Normals for all columns; then where heads act at random; then the random actions in float64."""
    places = make_places(BOXES, {"gear": 5})
    heads = {"arm": Gaussian(0.1, epsilon=0.5), "gripper": Gaussian(0.1), "gear": EpsilonGreedy(epsilon=0.5)}
    noise, generator = ActionNoise(places, heads, 7), torch.Generator().manual_seed(7)
    mask = [[0, 1, 1, 0, 1]]
    for _ in range(3):
        action, index = noise.perturb(make_choice(50, CENTER, [1], mask))
        eps = torch.randn(50, 4, generator=generator)
        where = torch.rand(50, 3, generator=generator) < torch.tensor([0.5, 0.0, 0.5])
        uniform = torch.rand(50, 4, generator=generator, dtype=torch.float64)
        noisy = (torch.tensor(CENTER) + 0.1 * HALF_RANGE * eps[:, :3]).clamp(LOW, HIGH)
        drawn = (LOW + (HIGH - LOW) * uniform[:, :3]).float()
        torch.testing.assert_close(action, torch.where(where[:, [0, 0, 1]], drawn, noisy))
        value = torch.tensor([1, 2, 4])[(3 * uniform[:, 3]).long()]
        assert torch.equal(index[:, 0], torch.where(where[:, 2], value, 1))
    assert 40 < where[:, [0, 2]].sum() < 60


def test_g01_generator_frames_and_memory_survive_a_safe_file(make_places, make_choice):
    places = make_places(BOXES, {"gear": 33})
    heads = {
        "arm": Gaussian(0.5, std_end=0.0, anneal_frames=100, redraw=True),
        "gripper": OrnsteinUhlenbeck(0.1),
        "gear": OrnsteinUhlenbeck(0.1, epsilon=0.5, epsilon_end=0.1, anneal_frames=100),
    }
    noise, greedy = ActionNoise(places, heads, 0, num_envs=3), make_choice(3, CENTER, [16])
    noise.step(40)
    for _ in range(7):
        noise.perturb(greedy)
    assert set(noise.state_dict()) == {"frames", "x", "_extra_state"} and noise.x.shape == (3, 4)
    restored, fresh = (ActionNoise(places, heads, 99, num_envs=3) for _ in range(2))
    restored.load_state_dict(in_a_file(noise.state_dict()))
    assert restored.frames.item() == 40
    for _ in range(3):
        right, found, other = (each.perturb(greedy) for each in (noise, restored, fresh))
        assert torch.equal(found[0], right[0]) and torch.equal(found[1], right[1])
        assert not torch.equal(other[0], right[0])


def test_heads_of_different_kinds_do_not_disturb_each_other(make_places, make_choice):
    greedy, memory = make_choice(4, CENTER), OrnsteinUhlenbeck(0.1, theta=0.3)
    mixed = noise_of(make_places, arm=memory, gripper=Gaussian(0.2), num_envs=4)
    without = noise_of(make_places, arm=Gaussian(0.1), gripper=Gaussian(0.2), num_envs=4)
    within = noise_of(make_places, arm=memory, gripper=memory, num_envs=4)
    for _ in range(5):
        both, plain, drifting = (noise.perturb(greedy)[0] for noise in (mixed, without, within))
        assert torch.equal(both[:, 2], plain[:, 2]) and torch.equal(both[:, :2], drifting[:, :2])
    assert not torch.equal(both[:, 0], plain[:, 0]) and not torch.equal(both[:, 2], drifting[:, 2])


def test_a_memory_is_cleared_at_the_start_of_an_episode_of_that_env_only(make_places, make_choice):
    greedy, kind = make_choice(3, CENTER), OrnsteinUhlenbeck(0.02)
    noise, endless, forgetful = (
        noise_of(make_places, arm=each, gripper=each, num_envs=3) for each in (kind, kind, Gaussian(0.02))
    )
    for _ in range(10):
        for each in (noise, endless, forgetful):
            each.perturb(greedy)
    starts = torch.tensor([False, True, False])
    found, right, fresh = (
        each.perturb(greedy, now)[0] for each, now in ((noise, starts), (endless, None), (forgetful, None))
    )
    assert torch.equal(found[[0, 2]], right[[0, 2]])
    # With dt = 1 the first step away from 0 is that of plain Gaussian noise.
    assert torch.equal(found[1], fresh[1]) and not torch.equal(found[1], right[1])
    # And it goes on from there: 0.85 of the last noise and what is new.
    last = found[1] - torch.tensor(CENTER)
    torch.testing.assert_close(noise.perturb(greedy)[0][1], forgetful.perturb(greedy)[0][1] + 0.85 * last)


def test_a_memory_is_of_the_envs_it_was_built_for(make_places, make_choice):
    noise = noise_of(make_places, arm=OrnsteinUhlenbeck(), num_envs=3)
    with pytest.raises(ValueError, match="noise with a memory is for 3 envs, got actions of 4"):
        noise.perturb(make_choice(4, CENTER))


def test_a_network_in_double_precision_acts_in_double_precision(make_places, make_choice):
    noise = noise_of(make_places, arm=Gaussian(0.1, redraw=True), gripper=Gaussian(0.0, epsilon=0.5))
    greedy = torch.tensor(CENTER, dtype=torch.float64) + 1e-9
    action, index = noise.perturb(make_choice(100, greedy))
    assert action.dtype == torch.float64 and index.dtype == torch.int64
    assert (action[:, 2] == 1e-9).any() and (action[:, 2] != 1e-9).any()
