import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from mhrl.aggregators import WeightedSum
from mhrl.functional import n_step
from mhrl.objectives import ValueBased
from mhrl.replay import PrioritisedReplay, UniformReplay


def stream(steps, num_envs, seed):
    """Rows `[steps, num_envs]` of random episodes, in float32 as collected; row (t, n) is number 100 t + n."""
    rng = np.random.default_rng(seed)
    number = 100 * torch.arange(steps)[:, None] + torch.arange(num_envs)
    flags = {name: torch.as_tensor(rng.random((steps, num_envs, 1)) < 0.15) for name in ("terminated", "truncated")}
    flags["done"] = flags["terminated"] | flags["truncated"]
    trajectory = torch.cat([torch.zeros(1, num_envs), flags["done"][:-1, :, 0].cumsum(0)]).long()
    reward = torch.as_tensor(rng.normal(size=(steps, num_envs, 1)).astype(np.float32))
    after = {"observation": number[..., None].float() + 0.5, "reward": reward, **flags}
    rows = {"observation": number[..., None].float(), "collector": {"traj_ids": trajectory}, "next": after}
    return TensorDict(rows, [steps, num_envs])


def pieces(rows, seed):
    """The rows, split at random times."""
    rng, start = np.random.default_rng(seed), 0
    while start < len(rows):
        stop = start + int(rng.integers(1, 6))
        yield rows[start:stop].clone()
        start = stop


def objective_of(network, n_steps, **options):
    return ValueBased(network, WeightedSum(), gamma=0.9, n_steps=n_steps, **options)


@pytest.fixture(scope="module")
def network(make_network):
    return make_network()


@given(n=st.integers(2, 5), num_envs=st.sampled_from([1, 4]), steps=st.integers(1, 25), seed=st.integers(0, 999))
def test_c03_rollouts_of_any_length_give_the_rows_of_the_whole_stream(network, n, num_envs, steps, seed):
    objective, rows = objective_of(network, n), stream(steps, num_envs, seed)
    out = [objective.process_rollout(piece) for piece in pieces(rows, seed)]
    emitted = max(0, steps - n + 1)
    assert sum(map(len, out)) == emitted
    if emitted:
        whole = torch.cat([part for part in out if len(part)])
        right = n_step(rows, n, 0.9)
        assert all(torch.equal(whole[key], right[key]) for key in right.keys(True, True))


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("kind", [UniformReplay, PrioritisedReplay])
def test_c03_a_ring_smaller_than_the_data_holds_the_newest_rows(network, num_envs, kind):
    objective, rows, n, ring = objective_of(network, 3), stream(40, num_envs, 5), 3, 7
    replay = kind(ring * num_envs, 64, num_envs, seed=0)
    for piece in pieces(rows, 1):
        replay.extend(objective.process_rollout(piece))  # the first may have no rows
    assert len(replay) == ring * num_envs
    right = {int(row["observation"]): row for row in n_step(rows, n, 0.9)[-ring:].flatten()}
    drawn = [row for batch in replay.batches(12) for row in batch]
    assert {int(row["observation"]) for row in drawn} == right.keys()
    for row in drawn:
        expected = right[int(row["observation"])]
        assert all(torch.equal(row[key], expected[key]) for key in expected.keys(True, True))


def test_c03_one_step_hands_the_rollout_on(network):
    rollout = stream(3, 2, 0)
    objective = objective_of(network, 1)
    assert objective.process_rollout(rollout) is rollout
    assert objective.process_state() == {}


def test_c03_the_target_bootstraps_with_gamma_to_the_steps_taken(make_network, make_batch):
    network = make_network(double=True)
    objective, batch = objective_of(network, 3), make_batch(network)
    batch["next", "terminated"] = torch.zeros(6, 1, dtype=torch.bool)
    reward = batch["next", "reward"].double()
    value = (objective.target_value(batch) - reward) / 0.9
    assert value.abs().min() > 1e-3
    batch["steps_to_next_obs"] = torch.tensor([[1], [2], [3], [3], [2], [1]])
    right = reward + torch.tensor([0.9, 0.81, 0.729, 0.729, 0.81, 0.9], dtype=torch.float64).unsqueeze(-1) * value
    torch.testing.assert_close(objective.target_value(batch), right, rtol=0, atol=1e-9)
    batch["next", "terminated"][2] = True
    assert objective.target_value(batch)[2] == reward[2]


def test_d02_the_rows_kept_back_go_through_a_safe_file(network):
    rows = stream(20, 2, 3)
    straight, halted, resumed = (objective_of(network, 4) for _ in range(3))
    straight.process_rollout(rows[:9])
    halted.process_rollout(rows[:9])
    file = io.BytesIO()
    torch.save(halted.process_state(), file)
    assert len(file.getvalue()) < 6000  # three rows of two envs, not the window that they were cut from
    file.seek(0)
    resumed.load_process_state(torch.load(file, weights_only=True))
    one, two = straight.process_rollout(rows[9:]), resumed.process_rollout(rows[9:])
    assert len(one) == 11 and all(torch.equal(one[key], two[key]) for key in one.keys(True, True))
    fresh = objective_of(network, 4)
    fresh.load_process_state(objective_of(network, 4).process_state())
    assert len(fresh.process_rollout(rows[:3])) == 0


def test_d02_a_cut_ends_the_rows_kept_back(network):
    rows = stream(8, 1, 0)
    for name in ("terminated", "truncated", "done"):
        rows["next", name] = torch.zeros(8, 1, 1, dtype=torch.bool)
    rows["collector", "traj_ids"] = torch.zeros(8, 1, dtype=torch.long)  # a new episode may reuse the number
    objective = objective_of(network, 3)
    objective.cut()  # nothing is kept back yet
    objective.process_rollout(rows[:4].clone())
    objective.cut()
    out = objective.process_rollout(rows[4:].clone())
    # Rows 2 and 3 were waiting: they end at row 3, and row 4 begins anew.
    assert out["observation"].flatten().tolist() == [200.0, 300.0, 400.0, 500.0]
    assert out["steps_to_next_obs"].flatten().tolist() == [2, 1, 3, 3]
    assert out["next", "observation"].flatten().tolist() == [300.5, 300.5, 600.5, 700.5]
    assert out["next", "truncated"].flatten().tolist() == [True, True, False, False]
    assert not out["next", "terminated"].any()


@pytest.mark.parametrize("bad", [0, -1, 1.5])
def test_steps_that_are_no_count_are_refused(network, bad):
    with pytest.raises(ValueError, match=rf"objective.n_steps is {bad}: a positive whole number"):
        objective_of(network, bad)
