from collections import Counter

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer

from mhrl.replay import UniformReplay
from mhrl.replay import uniform as replay_module


def rollout(start, steps, num_envs):
    """Row (t, n) holds the number `100 * (start + t) + n` under several keys and dtypes."""
    number = 100 * (start + torch.arange(steps))[:, None] + torch.arange(num_envs)
    return TensorDict(
        {
            "observation": torch.stack([number, -number], -1).float(),
            "pixels": (number % 256).to(torch.uint8)[..., None, None].expand(steps, num_envs, 2, 2).clone(),
            "action": number[..., None].double(),
            "next": {"reward": number[..., None].float(), "terminated": (number % 3 == 0)[..., None]},
            "collector": {"traj_ids": number.long()},
        },
        [steps, num_envs],
    )


def numbers(batch):
    return batch["collector", "traj_ids"]


def held(replay):
    """Every number that 40 batches show."""
    return {int(n) for batch in replay.batches(40) for n in numbers(batch)}


def test_c05_two_envs_and_three_steps_are_six_rows_without_env_and_time():
    replay = UniformReplay(10, 4, 2, seed=0)
    replay.extend(rollout(0, 3, 2))
    assert len(replay) == 6
    (batch,) = replay.batches(1)
    assert batch.batch_size == (4,)
    assert batch["observation"].shape == (4, 2) and batch["pixels"].shape == (4, 2, 2)
    assert batch["next", "reward"].shape == (4, 1)
    assert held(replay) == {0, 1, 100, 101, 200, 201}


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_c05_capacity_counts_transitions(num_envs):
    replay = UniformReplay(10, 4, num_envs, seed=0)
    for step in range(30):
        replay.extend(rollout(step, 1, num_envs))
        assert len(replay) == min(10, (step + 1) * num_envs)
    kept = range(30 - 10 // num_envs, 30)
    assert held(replay) == {100 * t + n for t in kept for n in range(num_envs)}


@pytest.mark.parametrize(("capacity", "num_envs", "rows"), [(7, 2, 6), (9, 5, 5), (3, 3, 3), (11, 4, 8)])
def test_capacity_is_rounded_down_to_a_multiple_of_the_envs(capacity, num_envs, rows):
    replay = UniformReplay(capacity, 2, num_envs, seed=0)
    for step in range(12):
        replay.extend(rollout(step, 1, num_envs))
    assert len(replay) == rows
    assert held(replay) == {100 * t + n for t in range(12 - rows // num_envs, 12) for n in range(num_envs)}


@pytest.mark.parametrize("steps", [[3, 3, 3], [5, 4, 2], [1, 8], [13]])
def test_ring_wraps_inside_a_rollout(steps):
    replay, start = UniformReplay(8, 4, 2, seed=0), 0
    for count in steps:
        replay.extend(rollout(start, count, 2))
        start += count
    assert held(replay) == {100 * t + n for t in range(start - 4, start) for n in range(2)}


def test_sampled_rows_are_stored_rows_in_every_key():
    replay = UniformReplay(9, 16, 3, seed=0)
    for step in range(0, 10, 2):
        replay.extend(rollout(step, 2, 3))
    stored = {int(n): row for row in rollout(0, 10, 3).flatten() for n in [numbers(row)]}
    drawn = [row for batch in replay.batches(5) for row in batch]
    assert len(drawn) == 80
    for row in drawn:
        right = stored[int(numbers(row))]
        for key in right.keys(True, True):
            assert torch.equal(row[key], right[key]) and row[key].dtype == right[key].dtype


def test_a09_dtypes_are_kept():
    replay = UniformReplay(10, 4, 2, seed=0)
    replay.extend(rollout(0, 3, 2))
    (batch,) = replay.batches(1)
    assert batch["pixels"].dtype == torch.uint8 and batch["action"].dtype == torch.float64
    assert batch["observation"].dtype == torch.float32 and batch["next", "terminated"].dtype == torch.bool


def test_uniform_frequencies():
    replay = UniformReplay(10, 100, 2, seed=0)
    replay.extend(rollout(0, 5, 2))
    counts = Counter(int(n) for batch in replay.batches(400) for n in numbers(batch))
    assert len(counts) == 10
    # 4,000 expected for each row, with a standard deviation of 60.
    assert all(abs(count - 4000) < 300 for count in counts.values())


def test_a_half_filled_ring_never_shows_an_empty_row():
    replay = UniformReplay(1000, 64, 1, seed=0)
    replay.extend(rollout(1, 2, 1))
    assert held(replay) == {100, 200}


def test_d01_same_seed_same_batches():
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(draws))  # the global generator must not matter
        replay = UniformReplay(20, 4, 2, seed=seed)
        replay.extend(rollout(0, 10, 2))
        draws.append(torch.stack([numbers(batch) for batch in replay.batches(6)]))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("num_envs", [1, 3])
def test_d01_draws_are_those_of_torchrls_buffer(num_envs):
    ours = UniformReplay(12 * num_envs, 5, num_envs, seed=7)
    theirs = ReplayBuffer(
        storage=LazyTensorStorage(12 * num_envs, ndim=2), dim_extend=0, generator=torch.Generator().manual_seed(7)
    )
    for step in range(0, 30, 3):
        rows = rollout(step, 3, num_envs)
        ours.extend(rows)
        theirs.extend(rows)
        for batch in ours.batches(1):
            right = theirs.sample(5)
            assert all(torch.equal(batch[key], right[key]) for key in right.keys(True, True))


def test_sampling_leaves_the_global_generator_alone():
    replay = UniformReplay(20, 4, 2, seed=0)
    replay.extend(rollout(0, 10, 2))
    before = torch.get_rng_state()
    list(replay.batches(3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.filterwarnings("error")
def test_batches_yields_so_many_of_so_many_rows(count):
    replay = UniformReplay(20, 4, 2, seed=0)
    replay.extend(rollout(0, 10, 2))
    batches = list(replay.batches(count))
    assert [batch.batch_size for batch in batches] == [(4,)] * count
    assert count < 2 or not torch.equal(numbers(batches[0]), numbers(batches[1]))


@pytest.mark.parametrize(("limit", "most"), [(1, 4), (500, 4 * 3), (10**9, 4 * 7)])
def test_one_call_gathers_a_bounded_number_of_bytes(monkeypatch, limit, most):
    # A row has 2 * 4 + 4 + 8 + 4 + 1 + 8 = 33 bytes, a batch of four 132: three of them in 500 bytes.
    monkeypatch.setattr(replay_module, "SAMPLE_BYTES", limit)
    replay = UniformReplay(20, 4, 2, seed=0)
    replay.extend(rollout(0, 10, 2))
    drawn, take = [], replay._ring.take
    monkeypatch.setattr(replay._ring, "take", lambda places: drawn.append(len(places)) or take(places))
    assert len(list(replay.batches(7))) == 7
    assert max(drawn) == most and sum(drawn) == 28


def test_a_batch_is_the_callers_to_change():
    replay = UniformReplay(2, 64, 1, seed=0)
    replay.extend(rollout(1, 2, 1))
    for batch in replay.batches(2):
        batch["collector", "traj_ids"].fill_(-1)
    assert held(replay) == {100, 200}


def test_c05_a_rollout_that_changes_later_does_not_change_what_is_stored():
    replay, rows = UniformReplay(4, 16, 2, seed=0), rollout(0, 2, 2)
    replay.extend(rows)
    rows["collector", "traj_ids"].fill_(-1)
    assert held(replay) == {0, 1, 100, 101}


def test_an_empty_replay_says_so():
    assert list(UniformReplay(8, 4, 2, seed=0).batches(0)) == []
    with pytest.raises(ValueError, match=r"replay is empty"):
        list(UniformReplay(8, 4, 2, seed=0).batches(1))


def test_sizes_that_hold_nothing_are_refused_by_name():
    with pytest.raises(ValueError, match=r"replay.capacity is 3: a whole number >= num_envs, 4"):
        UniformReplay(3, 2, 4, seed=0)
    with pytest.raises(ValueError, match=r"batch_size is 0"):
        UniformReplay(8, 0, 4, seed=0)
