"""n-step returns of rows that follow one another in time.

Shapes: `n` steps of a return, `T` time steps, `N` envs.
"""

import torch
from tensordict import TensorDictBase


def n_step(window: TensorDictBase, n: int, gamma: float) -> TensorDictBase:
    """Replace the step of each row by up to `n` steps (Sutton & Barto, 2018, eq. 7.1).

    Row t goes on over rows t, t + 1, ..., t + n - 1, and ends early with the first row that is `done`, or whose
    successor has another `("collector", "traj_ids")`: no return joins two episodes. With the k <= n steps it took,

        reward = sum_{i < k} gamma^i reward[t + i],   next = next[t + k - 1],   steps_to_next_obs = k

    so that its target is `reward + gamma^k (1 - terminated) Q(next observation)`; an end that is not `terminated`
    bootstraps from the last row before it. A row is complete once n - 1 more are there, ended or not: the lag is the
    same for all envs, and the result is rectangular.

    Args:
        window: rows as the collector yields them, `[T + n - 1, N]`; they are left as they are.
        n: the number of steps, at least 1.
        gamma: the discount.

    Returns:
        `[T, N]`: views of the window's first rows but for `next`, and `steps_to_next_obs` int64 `[T, N, 1]`.
    """
    length = len(window) - n + 1
    after = window.get("next")
    trajectory = window.get(("collector", "traj_ids")).unsqueeze(-1)
    ends = after.get("done").clone()
    ends[:-1] |= trajectory[1:] != trajectory[:-1]

    reward = after.get("reward")
    total = reward[:length].clone()
    steps = torch.ones_like(ends[:length], dtype=torch.int64)
    going = ~ends[:length]
    for i in range(1, n):
        total += torch.where(going, gamma**i * reward[i : i + length], 0)
        steps += going
        going &= ~ends[i : i + length]

    last = torch.arange(length).unsqueeze(-1) + steps.squeeze(-1) - 1
    rows = window[:length]
    rows.set("next", after[last, torch.arange(window.shape[1])].set("reward", total))
    return rows.set("steps_to_next_obs", steps)
