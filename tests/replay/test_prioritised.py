import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data.replay_buffers.samplers import prioritized

from mhrl.functional import reduce
from mhrl.replay import PrioritisedReplay


def rollout(start, steps, num_envs=1):
    """Row (t, n) holds its number `(start + t) * num_envs + n`."""
    number = (start + torch.arange(steps))[:, None] * num_envs + torch.arange(num_envs)
    return TensorDict({"number": number}, [steps, num_envs])


def replay_of(priorities, num_envs=1, batch_size=100, capacity=None, **options):
    """Rows 0, 1, ... with these priorities."""
    rows = len(priorities) // num_envs
    replay = PrioritisedReplay(capacity or len(priorities), batch_size, num_envs, 0, **options)
    replay.extend(rollout(0, rows, num_envs))
    give(replay, range(len(priorities)), priorities)
    return replay


def give(replay, rows, priorities):
    batch = TensorDict({"index": torch.tensor(list(rows)), "priority": torch.as_tensor(priorities)}, [len(rows)])
    replay.update_priority(batch)


def drawn(replay, batches):
    """How often each row came, and each row's weight."""
    counts, weights = Counter(), {}
    for batch in replay.batches(batches):
        counts.update(batch["number"].tolist())
        weights |= dict(zip(batch["number"].tolist(), batch["priority_weight"].tolist(), strict=True))
    return counts, weights


def leaves(replay):
    return replay.state_dict()["priorities"].flatten().tolist()


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_c04_rows_come_in_proportion_and_weigh_the_reverse(num_envs):
    replay = replay_of([1.0, 2.0, 3.0, 4.0], num_envs, alpha=1.0, beta=1.0)
    counts, weights = drawn(replay, 400)
    assert [counts[row] / 40_000 for row in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    assert [weights[row] for row in range(4)] == pytest.approx([1, 0.5, 0.3333, 0.25], abs=1e-4)


def test_c04_alpha_zero_is_uniform():
    counts, weights = drawn(replay_of([1.0, 2.0, 3.0, 0.0], alpha=0.0, beta=1.0), 400)
    assert [counts[row] / 40_000 for row in range(4)] == pytest.approx([0.25] * 4, abs=0.01)
    assert set(weights.values()) == {1.0}


def test_c04_beta_zero_does_not_correct():
    assert set(drawn(replay_of([1.0, 2.0], beta=0.0, beta_end=0.0), 4)[1].values()) == {1.0}


@given(
    priorities=st.lists(st.floats(0, 100), min_size=1, max_size=12),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
    eps=st.floats(1e-3, 1),
)
def test_c04_weights_are_those_of_the_paper(priorities, alpha, beta, eps):
    replay = replay_of(priorities, alpha=alpha, beta=beta, beta_end=beta, eps=eps)
    scaled = (np.asarray(priorities) + eps) ** alpha
    weight = (len(priorities) * scaled / scaled.sum()) ** -beta
    for row, found in drawn(replay, 2)[1].items():
        assert found == pytest.approx(weight[row] / weight.max(), rel=1e-5)


def test_c04_a_row_without_an_error_is_still_drawn():
    counts, _ = drawn(replay_of([0.0, 0.8], alpha=1.0, eps=0.1), 400)
    assert counts[0] / 40_000 == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -0.5])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_c04_a_bad_priority_is_refused_and_changes_nothing(bad, alpha):
    replay = replay_of([1.0, 2.0, 3.0], alpha=alpha)
    before = leaves(replay)
    with pytest.raises(ValueError, match=rf"priority of row 1 is {bad}: a finite number >= 0 is expected"):
        give(replay, [2, 0], [5.0, bad])
    assert leaves(replay) == before


def test_c04_priorities_of_another_shape_are_refused():
    replay = replay_of([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"priority has shape \[2, 1\]: \[2\] is expected"):
        give(replay, [2, 0], [[5.0], [1.0]])


def test_c04_new_rows_enter_with_the_largest_priority_that_there_is():
    replay = PrioritisedReplay(6, 4, 1, 0, alpha=1.0, eps=0.25)
    replay.extend(rollout(0, 3))
    assert leaves(replay) == [1.0, 1.0, 1.0]
    give(replay, [0, 1, 2], [0.25, 0.5, 0.75])
    replay.extend(rollout(3, 1))
    assert leaves(replay) == [0.5, 0.75, 1.0, 1.0]
    give(replay, [2, 3], [0.0, 0.0])  # the largest is row 1's now
    replay.extend(rollout(4, 1))
    assert leaves(replay) == [0.5, 0.75, 0.25, 0.25, 0.75]
    give(replay, [4], [9.75])
    replay.extend(rollout(5, 2))  # over row 0
    assert leaves(replay) == [10.0, 0.75, 0.25, 0.25, 10.0, 10.0]


def test_c04_an_update_of_a_row_that_was_overwritten_is_ignored():
    replay = replay_of([1.0, 1.0, 1.0, 1.0], num_envs=2, alpha=1.0, eps=0.5)
    batch = next(replay.batches(1))
    assert torch.equal(batch["index"], batch["number"]) and batch["index"].unique().tolist() == [0, 1, 2, 3]
    replay.extend(rollout(2, 1, 2))  # rows 4 and 5, over rows 0 and 1
    batch["priority"] = torch.full((100,), 7.0)
    replay.update_priority(batch)
    assert leaves(replay) == [1.5, 1.5, 7.5, 7.5]
    fresh = next(replay.batches(1))
    assert torch.equal(fresh["index"], fresh["number"]) and fresh["index"].unique().tolist() == [2, 3, 4, 5]


def test_c04_each_batch_sees_the_update_before():
    replay = replay_of([1.0, 1.0], batch_size=50, eps=1e-12)
    batches = replay.batches(3)
    assert next(batches)["number"].unique().tolist() == [0, 1]
    give(replay, [0, 1], [0.0, 1e9])
    assert next(batches)["number"].unique().tolist() == [1]
    give(replay, [0, 1], [1e9, 0.0])
    assert next(batches)["number"].unique().tolist() == [0]


def test_c04_a_hundred_thousand_updates_leave_no_drift():
    rng = np.random.default_rng(0)
    replay = replay_of(rng.uniform(0, 100, 1000))
    for _ in range(1000):
        give(replay, rng.integers(0, 1000, 100), 10 ** rng.uniform(-6, 6, 100))
    root, held = replay._trees._sum.query(0, 1000), np.asarray(leaves(replay))
    assert abs(root - held.sum()) / held.sum() < 1e-6
    assert replay._trees._min.query(0, 1000) == held.min() and replay._trees._max.query(0, 1000) == -held.max()


def test_c04_draws_are_those_of_the_inverse_distribution_in_double_precision():
    priorities = np.random.default_rng(0).uniform(0, 1, 3000)
    replay = replay_of(priorities, num_envs=3, batch_size=5000, alpha=0.5, eps=0.25)
    (batch,) = replay.batches(1)
    edges = torch.as_tensor(np.sqrt(priorities + 0.25)).cumsum(0)
    mass = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * edges[-1]
    assert torch.equal(batch["number"], torch.searchsorted(edges, mass))


def test_c04_a_batch_that_was_not_updated_keeps_its_priorities():
    replay = replay_of([1.0, 2.0])
    before = leaves(replay)
    replay.update_priority(next(replay.batches(1)))
    assert leaves(replay) == before


def test_c04_weights_have_the_shape_of_a_loss_by_sample():
    batch = next(replay_of([1.0, 2.0], batch_size=5).batches(1))
    assert batch["priority_weight"].shape == (5,) and batch["priority_weight"].dtype == torch.float32
    reduce(torch.ones(5), batch["priority_weight"])


def test_beta_goes_in_a_line_over_the_transitions_written():
    replay = PrioritisedReplay(4, 4, 2, 0, beta=0.4, beta_end=0.9, anneal_frames=10)
    seen = [replay.beta]
    for step in range(6):
        replay.extend(rollout(step, 1, 2))
        seen.append(replay.beta)
    assert seen == pytest.approx([0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9])
    give(replay, [8, 9, 10, 11], [1.0, 2.0, 4.0, 8.0])
    _, weights = drawn(replay, 20)
    assert weights[11] == pytest.approx(8 ** (-0.6 * 0.9), rel=1e-4)


def test_d01_draws_depend_on_the_seed_and_on_no_global_generator():
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(draws))
        np.random.seed(len(draws))
        replay = PrioritisedReplay(20, 8, 2, seed)
        replay.extend(rollout(0, 10, 2))
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        draws.append(torch.stack([batch["number"] for batch in replay.batches(6)]))
        assert torch.equal(before[0], torch.get_rng_state())
        assert (before[1], before[2]) == (np.random.get_state()[1].tolist(), random.getstate())
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_an_empty_replay_says_so():
    assert list(PrioritisedReplay(8, 4, 2, 0).batches(0)) == []
    with pytest.raises(ValueError, match=r"replay is empty"):
        list(PrioritisedReplay(8, 4, 2, 0).batches(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, r"replay.alpha is -0.1: a number from 0 to 1"),
        ({"alpha": 1.5}, r"replay.alpha is 1.5"),
        ({"beta": 2}, r"replay.beta is 2"),
        ({"beta_end": float("nan")}, r"replay.beta_end is nan"),
        ({"anneal_frames": 0}, r"replay.anneal_frames is 0: a positive whole number"),
        ({"eps": 0}, r"replay.eps is 0: a positive number"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        PrioritisedReplay(8, 4, 2, 0, **options)


def test_c04_a_torch_that_the_compiled_part_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(prioritized, "SumSegmentTreeFp64", None)
    with pytest.raises(ValueError, match=r"loads with torch 2.14.1 and not with 2"):
        PrioritisedReplay(8, 4, 2, 0)
