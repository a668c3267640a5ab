import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from mhrl.functional import cut_episodes, n_step, td_target

FLAGS = ("terminated", "truncated", "done")


def stream(steps, num_envs, seed, cuts=0.1):
    """Rows `[steps, num_envs]` of random episodes; some end without a flag, where only the trajectory changes.

    The observation of row (t, n) is 100 t + n, that of its `next` 0.5 more.
    """
    rng = np.random.default_rng(seed)
    terminated, truncated = (torch.as_tensor(rng.random((steps, num_envs)) < 0.15) for _ in range(2))
    ends = (terminated | truncated) | torch.as_tensor(rng.random((steps, num_envs)) < cuts)
    number = 100.0 * torch.arange(steps)[:, None] + torch.arange(num_envs)
    after = {"observation": number[..., None] + 0.5, "reward": torch.as_tensor(rng.normal(size=(steps, num_envs, 1)))}
    after |= {"terminated": terminated[..., None], "truncated": truncated[..., None]}
    after["done"] = after["terminated"] | after["truncated"]
    trajectory = torch.cat([torch.zeros(1, num_envs), ends[:-1].cumsum(0)]) * num_envs + torch.arange(num_envs)
    rows = {"observation": number[..., None], "action": torch.as_tensor(rng.normal(size=(steps, num_envs, 2)))}
    return TensorDict({**rows, "collector": {"traj_ids": trajectory.long()}, "next": after}, [steps, num_envs])


def oracle(rows, n, gamma):
    """`{(t, env): (reward, steps, row of next)}`, by cutting every env's rows into episodes first."""
    found = {}
    for env in range(rows.shape[1]):
        episodes = [[]]
        for t in range(len(rows)):
            row = rows[t, env]
            if episodes[-1] and row["collector", "traj_ids"] != rows[t - 1, env]["collector", "traj_ids"]:
                episodes.append([])
            episodes[-1].append((t, row["next", "reward"].item()))
            if row["next", "done"]:
                episodes.append([])
        for episode in episodes:
            for i, (t, _) in enumerate(episode):
                taken = episode[i : i + n]
                found[t, env] = (sum(gamma**j * r for j, (_, r) in enumerate(taken)), len(taken), taken[-1][0])
    return found


def assert_right(out, start, rows, n, gamma):
    """Rows `out` are the n-step rows of `rows` from row `start` on."""
    right = oracle(rows, n, gamma)
    for i in range(len(out)):
        for env in range(rows.shape[1]):
            reward, steps, last = right[start + i, env]
            got, raw, end = out[i, env], rows[start + i, env], rows[last, env]
            assert got["next", "reward"].item() == pytest.approx(reward, rel=1e-6, abs=1e-6)
            assert got["steps_to_next_obs"].tolist() == [steps]
            for key in ("observation", "action", ("collector", "traj_ids")):
                assert torch.equal(got[key], raw[key])
            for key in ("observation", *FLAGS):
                assert torch.equal(got["next", key], end["next", key])


def minimal(terminated=False, truncated=False, extra=2):
    """Rewards 1, 2, 3 with target values 10, 20, 30 as next observations; rows of the next episode follow."""
    rewards = torch.tensor([1.0, 2.0, 3.0, *[1000.0] * extra])
    flags = {"terminated": torch.zeros(len(rewards), 1, 1, dtype=torch.bool)}
    flags |= {name: flags["terminated"].clone() for name in FLAGS[1:]}
    flags["terminated"][2], flags["truncated"][2], flags["done"][2] = terminated, truncated, terminated or truncated
    value = torch.tensor([10.0, 20.0, 30.0, *[7777.0] * extra])
    after = {"observation": value.view(-1, 1, 1), "reward": rewards.view(-1, 1, 1), **flags}
    ids = torch.tensor([0, 0, 0, *[int(terminated or truncated)] * extra]).view(-1, 1)
    return TensorDict({"collector": {"traj_ids": ids}, "next": after}, [len(rewards), 1])


def targets(rows, gamma=0.9):
    after = rows["next"]
    parts = [after[key].flatten() for key in ("reward", "terminated", "observation")]
    return td_target(*parts, gamma ** rows["steps_to_next_obs"].flatten())


@pytest.mark.parametrize(
    ("flags", "right"), [({"terminated": True}, [5.23, 4.70, 3.00]), ({"truncated": True}, [27.10, 29.00, 30.00])]
)
def test_c03_three_steps_at_an_end(flags, right):
    out = n_step(minimal(**flags), 3, 0.9)
    assert out["steps_to_next_obs"].flatten().tolist() == [3, 2, 1]
    torch.testing.assert_close(targets(out), torch.tensor(right), rtol=0, atol=1e-5)


def test_c03_two_steps_in_mid_episode():
    out = n_step(minimal(extra=0)[:2], 2, 0.9)
    torch.testing.assert_close(targets(out), torch.tensor([19.0]), rtol=0, atol=1e-5)


def test_c03_an_end_without_a_flag_bootstraps_from_the_last_row_before_it():
    rows = minimal(extra=2)
    rows["collector", "traj_ids"][3:] = 1
    torch.testing.assert_close(targets(n_step(rows, 3, 0.9)), torch.tensor([27.10, 29.00, 30.00]), rtol=0, atol=1e-5)


@given(n=st.integers(1, 5), num_envs=st.sampled_from([1, 4]), steps=st.integers(1, 12), seed=st.integers(0, 999))
def test_c03_equals_a_brute_force(n, num_envs, steps, seed):
    rows = stream(steps + n - 1, num_envs, seed)
    before = rows.clone()
    out = n_step(rows, n, 0.9)
    assert out.batch_size == (steps, num_envs)
    assert out["steps_to_next_obs"].dtype == torch.int64 and out["next", "reward"].dtype == torch.float64
    assert_right(out, 0, rows, n, 0.9)
    assert (rows == before).all() and rows.get("steps_to_next_obs", None) is None


def test_c03_one_step_is_the_rows_themselves():
    rows = stream(6, 2, 0)
    out = n_step(rows, 1, 0.9)
    assert (out.exclude("steps_to_next_obs") == rows).all() and (out["steps_to_next_obs"] == 1).all()


def test_cut_marks_rows_that_go_on_and_leaves_ends_alone():
    rows = TensorDict(
        {
            "next": {
                "terminated": torch.tensor([[True], [False], [False]]),
                "truncated": torch.tensor([[False], [True], [False]]),
                "done": torch.tensor([[True], [True], [False]]),
            }
        },
        [3],
    )
    cut_episodes(rows)
    assert rows["next", "terminated"].flatten().tolist() == [True, False, False]
    assert rows["next", "truncated"].flatten().tolist() == [False, True, True]
    assert rows["next", "done"].flatten().tolist() == [True, True, True]
