import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.exploration import ActionNoise, Gaussian

LOW, HIGH = [-1.0, 0.0, -10.0], [3.0, 0.5, 10.0]
BOXES = {"arm": [(-1.0, 3.0), (0.0, 0.5)], "gripper": [(-10.0, 10.0)]}
COUNT = 100_000


def phi(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@given(
    arm=st.floats(0, 2),
    gripper=st.floats(0, 2),
    end=st.floats(0, 2),
    start=st.integers(0, 500),
    length=st.integers(1, 1000),
    frames=st.integers(0, 2000),
    seed=st.integers(0, 2**31),
)
def test_gaussian_noise_bit_for_bit(make_places, make_choice, arm, gripper, end, start, length, frames, seed):
    """Against the formula itself, in float32: linear schedule, times the half-range, clipped."""
    heads = {
        "arm": Gaussian(arm, std_end=end, anneal_frames=length, anneal_start=start),
        "gripper": Gaussian(gripper),
    }
    noise = ActionNoise(make_places(BOXES), heads, seed)
    half_range, low, high = torch.tensor([2.0, 0.25, 10.0]), torch.tensor(LOW), torch.tensor(HIGH)
    first, last = half_range * torch.tensor([arm, arm, gripper]), half_range * torch.tensor([end, end, gripper])
    passed = torch.tensor([max(0, frames - start)] * 2 + [frames])
    progress = (passed / torch.tensor([float(length), float(length), 1.0])).clamp(max=1)
    generator, greedy = torch.Generator().manual_seed(seed), make_choice(5, [1.0, 0.25, 0.0])
    noise.step(frames)
    for _ in range(3):  # nothing is carried from one step to the next
        right = greedy.action + torch.randn((5, 3), generator=generator) * torch.lerp(first, last, progress)
        action, index = noise.perturb(greedy)
        assert torch.equal(action, right.clamp(low, high)) and index.shape == (5, 0)
    assert not noise.x.any()


def shares(index, n):
    return np.bincount(index.flatten().numpy(), minlength=n) / index.numel()


def assert_shares(index, right):
    """Every share within five binomial standard errors."""
    right = np.asarray(right)
    assert (np.abs(shares(index, len(right)) - right) <= 5 * np.sqrt(right * (1 - right) / index.numel()) + 1e-12).all()


@pytest.mark.parametrize("greedy", [0, 3, 5, 10])
def test_noise_on_a_branch_is_in_half_ranges_of_its_values_and_rounded(make_places, make_choice, greedy):
    # 11 values: a half-range is 5 values, so 0.2 of it is 1 value.
    noise = ActionNoise(make_places(branches={"gear": 11}), {"gear": Gaussian(0.2)}, 0)
    action, index = noise.perturb(make_choice(COUNT, index=[greedy]))
    assert action.shape == (COUNT, 0) and index.dtype == torch.int64
    edges = [-math.inf, *(k + 0.5 for k in range(10)), math.inf]  # what is clipped ends at the outermost values
    assert_shares(index, np.diff([phi(edge - greedy) for edge in edges]))


@pytest.mark.parametrize("greedy", [0, 3, 10])
def test_redrawn_noise_on_a_branch_is_a_truncated_normal(make_places, make_choice, greedy):
    noise = ActionNoise(make_places(branches={"gear": 11}), {"gear": Gaussian(0.4, redraw=True)}, 0)
    _, index = noise.perturb(make_choice(COUNT, index=[greedy]))
    edges = [0, *(k + 0.5 for k in range(10)), 10]
    cumulated = np.array([phi((edge - greedy) / 2.0) for edge in edges])
    assert_shares(index, np.diff(cumulated) / (cumulated[-1] - cumulated[0]))


@pytest.mark.parametrize(("greedy", "std"), [(1.0, 0.5), (-1.0, 0.5), (2.9, 0.3), (0.0, 3.0), (3.0, 1e6)])
def test_redrawn_noise_in_a_box_is_what_drawing_again_gives(make_places, make_choice, greedy, std):
    noise = ActionNoise(make_places({"arm": [(-1.0, 3.0)]}), {"arm": Gaussian(std, redraw=True)}, 0)
    found = np.sort(noise.perturb(make_choice(COUNT, [greedy]))[0].flatten().numpy())
    # The oracle: the distribution function of the truncated normal; std is in half-ranges of 2.
    below, above = phi((-1 - greedy) / (2 * std)), phi((3 - greedy) / (2 * std))
    cumulated = (np.array([phi((x - greedy) / (2 * std)) for x in found.tolist()]) - below) / (above - below)
    steps = np.arange(COUNT + 1) / COUNT
    largest = max(np.abs(cumulated - steps[1:]).max(), np.abs(cumulated - steps[:-1]).max())
    assert largest < 1.95 / math.sqrt(COUNT)  # Kolmogorov-Smirnov: one seed in 1,000 is above
    assert found.min() >= -1 and found.max() <= 3
    if std < 1:  # and drawing again, literally, where that ends soon
        drawn = greedy + 2 * std * np.random.default_rng(0).standard_normal(8 * COUNT)
        drawn = drawn[(drawn >= -1) & (drawn <= 3)]
        assert abs(found.mean() - drawn.mean()) < 5 * drawn.std() / math.sqrt(COUNT) * 1.5
        assert found.std() == pytest.approx(drawn.std(), rel=0.02)


def test_redrawn_noise_puts_nothing_on_the_bounds_and_clipped_noise_does(make_places, make_choice):
    for redraw in (True, False):
        noise = ActionNoise(make_places({"arm": [(-1.0, 3.0)]}), {"arm": Gaussian(0.5, redraw=redraw)}, 0)
        action, _ = noise.perturb(make_choice(COUNT, [-0.5]))
        assert ((action == -1.0).float().mean() > 0.3) == (not redraw)
        assert (action == -1.0).sum() < 10 or not redraw


@pytest.mark.parametrize("std", [0.0, 1e-30, 1e-9, 1e15, 1e30])
@pytest.mark.parametrize("greedy", [-1.0, 1.0, 3.0])
def test_redrawn_noise_of_any_size_is_a_number_in_range(make_places, make_choice, std, greedy):
    places = make_places({"arm": [(-1.0, 3.0)], "fixed": [(2.0, 2.0)]})
    noise = ActionNoise(places, dict.fromkeys(places.acting, Gaussian(std, redraw=True)), 0)
    action, _ = noise.perturb(make_choice(1000, [greedy, 2.0]))
    assert ((action[:, 0] >= -1) & (action[:, 0] <= 3)).all() and (action[:, 1] == 2).all()
    if std < 1e-6:
        torch.testing.assert_close(action[:, 0], torch.full((1000,), greedy))
    assert std > 0 or (action[:, 0] == greedy).all()


def test_only_heads_that_redraw_do(make_places, make_choice):
    places = make_places({"arm": [(-1.0, 1.0)], "gripper": [(-1.0, 1.0)]}, {"gear": 5, "light": 5})
    heads = {name: Gaussian(1.0, redraw=name in ("gripper", "light")) for name in places.acting}
    plain = ActionNoise(places, dict.fromkeys(places.acting, Gaussian(1.0)), 0)
    greedy = make_choice(1000, [0.5, 0.5], [1, 1])
    action, index = ActionNoise(places, heads, 0).perturb(greedy)
    right, right_index = plain.perturb(greedy)
    assert torch.equal(action[:, 0], right[:, 0]) and torch.equal(index[:, 0], right_index[:, 0])
    # Most of what is drawn again differs by far; it grows with the draw, since one draw gives one number.
    assert ((action[:, 1] - right[:, 1]).abs() > 0.01).float().mean() > 0.9
    assert not torch.equal(index[:, 1], right_index[:, 1])
    inner = right[:, 1].abs() < 1
    order = right[inner, 1].argsort()
    assert (action[inner, 1][order].diff() >= 0).all()


def test_unrounded_noise_stays_between_two_values_of_a_continuous_dimension_only(make_places, make_choice):
    places = make_places({"arm": [(-1.0, 1.0)]}, {"joint": (11, False), "gear": (11, True), "wrist": (5, False)})
    heads = {
        "arm": Gaussian(0.1),
        "joint": Gaussian(0.2, round=False),
        "gear": Gaussian(0.2, round=False),
        "wrist": Gaussian(0.2),
    }
    greedy = make_choice(1000, [0.0], [5, 5, 2])
    action, index = ActionNoise(places, heads, 0).perturb(greedy)
    eps = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    assert index.dtype == torch.float32
    torch.testing.assert_close(action[:, 0], (0.1 * eps[:, 0]).clamp(-1, 1))
    torch.testing.assert_close(index[:, 0], (5 + 0.2 * 5 * eps[:, 1]).clamp(0, 10))
    assert torch.equal(index[:, 1], (5 + 0.2 * 5 * eps[:, 2]).clamp(0, 10).round())
    assert torch.equal(index[:, 2], (2 + 0.2 * 2 * eps[:, 3]).clamp(0, 4).round())


def test_unrounded_noise_is_rounded_where_a_mask_forbids_values(make_places, make_choice):
    places = make_places(branches={"joint": (4, False), "wrist": (3, False)})
    noise = ActionNoise(places, dict.fromkeys(places.acting, Gaussian(1.0, round=False)), 0)
    free, forbidden = [[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 0, 1, 1], [1, 1, 1, 0]]
    mask = torch.tensor([free, forbidden], dtype=torch.bool).repeat(500, 1, 1)
    _, index = noise.perturb(make_choice(1000, index=[2, 1], mask=mask))
    whole = index == index.round()
    assert whole[1::2, 0].all() and not (index[1::2, 0] == 1).any()
    assert not whole[::2, 0].all() and not whole[:, 1].all()  # padding forbids nothing
