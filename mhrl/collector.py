"""Steps a vector env with a policy and yields what happened as TensorDicts.

Shapes: T vector steps of a rollout, N envs.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from tensordict import TensorDict

from mhrl.envs import (
    Key,
    Leaf,
    NonFiniteError,
    check_finite,
    check_mask,
    conform,
    finite_rows,
    join,
    mask_key,
    next_key,
    reset_envs,
    restore_envs,
    snapshots,
    split,
    uniform_actions,
)
from mhrl.functional import tensordict_of

_log = logging.getLogger("mhrl")


class Policy(Protocol):
    """What acts."""

    def act(
        self, observation: Mapping[Key, torch.Tensor], frames: int, is_init: torch.Tensor
    ) -> Mapping[Key, torch.Tensor]:
        """Return actions `[N, *shape]` in env units by leaf key, for CPU observations and masks `[N, *shape]` by key.

        `is_init` `[N]`, bool, says which envs are at the first step of an episode.
        """


class Collector:
    """Iterates over rollouts of a vector env in autoreset mode SAME_STEP.

    Each rollout is a TensorDict of batch size [T, N] in fresh memory: the caller's to keep or change, no later rollout
    writes to it. It holds, observations and actions in their spaces' dtypes,

    - every observation leaf and mask, and under `next` those that the step led to (the true last ones at an end);
    - every action leaf, bit for bit what the env executed;
    - `("next", "reward")` float32 and `("next", "terminated" | "truncated" | "done")` bool, all [T, N, 1];
    - `is_init` bool [T, N, 1], True at the first step of an episode;
    - `("collector", "traj_ids")` int64 [T, N], one number an episode, unique in the run.

    While `frames < learning_starts` actions are uniform over what is legal and the policy is not asked. A rollout ends
    at the next multiple of `num_envs * frames_per_rollout` frames, or earlier at the first multiple of `num_envs` at or
    past `learning_starts` or `total_frames`; the latter ends the iteration.

    Args:
        env: From `make_vector_env`.
        policy: Asked under `torch.no_grad()`, with the observation and the frames so far.
        observation_leaves: What an observation of one env consists of, masks too: its `spaces.seen`.
        action_leaves: One env's `spaces.actions`.
        seeds: One reset seed for each env, used once when iteration starts.
        warmup_seed: Seed of the uniform warm-up actions.
        learning_starts: Frames of warm-up.
        total_frames: Frames to collect, rounded up to whole vector steps.
        frames_per_rollout: Frames per env in a rollout.
        on_nonfinite: What a non-finite observation or reward does. `skip` leaves that vector step out (of every env,
            so that rows stay rectangular; each env's trajectory gets a new number), resets the envs at fault and
            counts it.

    Raises:
        NonFiniteError: While iterating, with env index and key: on a non-finite action before the env is stepped; with
            `on_nonfinite="error"` on a non-finite observation or reward before the row is handed out.
        EmptyMaskError: While iterating, if an env that is to act has no legal action.
        ValueError: While iterating, if the policy's action has another shape than `[N, *shape]`.

    Attributes:
        frames: Env transitions collected so far.
        skipped_rows: Those left out because the env returned something non-finite.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        policy: Policy,
        *,
        observation_leaves: tuple[Leaf, ...],
        action_leaves: tuple[Leaf, ...],
        seeds: list[int],
        warmup_seed: int,
        learning_starts: int,
        total_frames: int,
        frames_per_rollout: int = 1,
        on_nonfinite: Literal["error", "skip"] = "error",
    ) -> None:
        self.env, self.policy = env, policy
        self.learning_starts, self.total_frames = learning_starts, total_frames
        self.frames_per_rollout = frames_per_rollout
        self.on_nonfinite = on_nonfinite
        self.frames = 0
        self.skipped_rows = 0
        self._leaves, self._action_leaves = observation_leaves, action_leaves
        self._columns = _columns(observation_leaves, action_leaves)
        keys = [leaf.key for leaf in observation_leaves]
        # For each action leaf, which of the observation's leaves is its mask.
        self._masks = [keys.index(key) if (key := mask_key(leaf)) in keys else None for leaf in action_leaves]
        self._float_leaves = [i for i, leaf in enumerate(observation_leaves) if np.dtype(leaf.space.dtype).kind == "f"]
        self._seeds: Any = seeds  # gymnasium annotates one int only
        self._rng = np.random.default_rng(warmup_seed)
        self._observation: list[np.ndarray] = []  # what the policy sees next, [N, *shape] a leaf
        self._is_init = np.ones(env.num_envs, np.bool_)
        self._traj_ids = np.arange(env.num_envs)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        self._episodes: list[tuple[float, int]] = []

    def __iter__(self) -> Iterator[TensorDict]:
        """Yield rollouts up to `total_frames`; iterating again goes on where the last iteration stopped."""
        if not self._observation:
            observation = self._split(self.env.reset(seed=self._seeds)[0])
            self._check_observation(observation)
            self._observation = observation
        while self.frames < self.total_frames:
            steps, held = self._vector_steps(), 0
            rows = _Rows((steps, self.env.num_envs), self._columns, len(self._leaves))
            before = self.frames
            try:
                for _ in range(steps):
                    held += self._step(rows, held)
            except BaseException:
                self.frames = before  # frames are those of rollouts that were handed out
                raise
            yield rows.tensordict() if held == steps else rows.tensordict()[:held]

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns (sums of raw rewards) and lengths of the episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return [total for total, _ in episodes], [length for _, length in episodes]

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def state_dict(self, *, envs: bool = True) -> dict[str, Any]:
        """All that the next rollout depends on, the policy excepted; of plain values and numpy arrays.

        Args:
            envs: Whether to ask the envs for their state; without it, resuming begins new episodes.
        """
        return {
            "skipped_rows": self.skipped_rows,
            "warmup": self._rng.bit_generator.state,
            "observation": [value.copy() for value in self._observation],
            "is_init": self._is_init.copy(),
            "traj_ids": self._traj_ids.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "episodes": [list(episode) for episode in self._episodes],
            "snapshots": snapshots(self.env) if envs else [None] * self.env.num_envs,
        }

    @property
    def inexact(self) -> str | None:
        """Why an env's state could not be had when it was last asked for; None if it could."""
        env: Any = self.env  # gymnasium types `get_attr` in its subclasses only
        return _first(env.get_attr("inexact"))

    def load_state_dict(self, state: Mapping[str, Any], frames: int) -> str | None:
        """Go on where `state_dict` was taken, at `frames`.

        Returns:
            None, or why an env is not exactly where it was (`inexact`). Then each env begins a new episode, from a seed
            that the run has not used yet.
        """
        self.frames, self.skipped_rows = frames, state["skipped_rows"]
        self._rng.bit_generator.state = state["warmup"]
        self._traj_ids = state["traj_ids"].copy()
        self._episodes = [(float(total), int(length)) for total, length in state["episodes"]]
        self.env.reset(seed=self._seeds)
        inexact = _first(restore_envs(self.env, state["snapshots"]))
        if inexact is None:
            self._observation = [value.copy() for value in state["observation"]]
            self._is_init = state["is_init"].copy()
            self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()
            return None
        seeds: Any = [(seed + 2 * frames) % 2**31 for seed in self._seeds]
        observation = self._split(self.env.reset(seed=seeds)[0])
        self._check_observation(observation)
        self._observation = observation
        self._renew_traj_ids()
        return inexact

    def _vector_steps(self) -> int:
        """Return T of the next rollout."""
        num_envs, per_rollout = self.env.num_envs, self.frames_per_rollout
        now = self.frames // num_envs
        ends = [-(-mark // num_envs) for mark in (self.learning_starts, self.total_frames)]
        ends.append((now // per_rollout + 1) * per_rollout)
        return min(end for end in ends if end > now) - now

    def _step(self, rows: "_Rows", t: int) -> bool:
        """Take one vector step and write it into row `t`; return whether the row is to be kept."""
        for column, value in zip(rows.observation, self._observation, strict=True):
            column[t] = value
        actions = self._act(rows, t)
        for column, value in zip(rows.action, actions, strict=True):
            column[t] = value
        observation, reward, terminated, truncated, infos = self.env.step(join(actions, self._action_leaves))
        done = terminated | truncated
        (ends,) = done.nonzero()
        # What the envs are in now; where an episode ended, that is the first observation of the next one.
        self._observation = self._split(observation)
        for column, value in zip(rows.next_observation, self._observation, strict=True):
            column[t] = value
        for i in ends:
            for column, value in zip(rows.next_observation, self._split(infos["final_obs"][i]), strict=True):
                column[t, i] = value
        try:
            self._check("reward", reward)
            self._check_observation([column[t] for column in rows.next_observation])
            if ends.size:
                self._check_observation(self._observation)
        except NonFiniteError as error:
            if self.on_nonfinite == "error":
                raise
            self._skip(error, [reward, *(column[t] for column in rows.next_observation), *self._observation], done)
            return False
        for leaf, i in zip(self._action_leaves, self._masks, strict=True):
            if i is not None:  # a truncated episode bootstraps from where it was cut: something must be legal there
                check_mask(rows.next_observation[i][t], leaf, over=terminated)
        rows.reward[t, :, 0] = reward
        rows.terminated[t, :, 0], rows.truncated[t, :, 0], rows.done[t, :, 0] = terminated, truncated, done
        rows.is_init[t, :, 0], rows.traj_ids[t] = self._is_init, self._traj_ids
        self._account(reward, done, ends)
        return True

    def _skip(self, error: NonFiniteError, seen: list[np.ndarray], done: np.ndarray) -> None:
        """Leave a vector step out and reset the envs that returned something non-finite."""
        bad = ~np.logical_and.reduce([finite_rows(values) for values in seen])
        if not self.skipped_rows:
            _log.warning("%s; the row is left out and the env reset (later ones are only counted)", error)
        self.skipped_rows += int(bad.sum())
        self.frames += len(bad)
        self._observation = self._split(reset_envs(self.env, bad))
        self._check_observation(self._observation)
        self._is_init = done | bad
        self._returns[self._is_init], self._lengths[self._is_init] = 0.0, 0
        self._renew_traj_ids()

    def _renew_traj_ids(self) -> None:
        """Give every env's trajectory a new number: the next row does not follow the last one."""
        self._traj_ids = self._traj_ids.max() + 1 + np.arange(self._traj_ids.size)

    def _act(self, rows: "_Rows", t: int) -> list[np.ndarray]:
        """Return the actions `[N, *shape]` to execute, one array a leaf."""
        if self.frames < self.learning_starts:
            masks = [None if i is None else rows.observation[i][t] for i in self._masks]
            return [
                uniform_actions(self._rng, leaf, self.env.num_envs, mask)
                for leaf, mask in zip(self._action_leaves, masks, strict=True)
            ]
        # Of the rollout's memory, not the env's: a policy may keep what it saw.
        seen = {
            one.key: torch.from_numpy(column[t]) for one, column in zip(self._leaves, rows.observation, strict=True)
        }
        with torch.no_grad():
            proposed = self.policy.act(seen, self.frames, torch.from_numpy(self._is_init))
        return [self._executed(leaf, proposed[leaf.key].numpy(force=True)) for leaf in self._action_leaves]

    def _executed(self, leaf: Leaf, action: np.ndarray) -> np.ndarray:
        """Return a policy's action as the env gets it."""
        space = leaf.box
        shape = (self.env.num_envs, *space.shape)
        if action.shape != shape:
            raise ValueError(f"{leaf.name}: expected a policy's actions of shape {shape}, got {action.shape}")
        check_finite(action, leaf.name, f"at frames {self.frames}", "for")
        return conform(action, space)

    def _account(self, reward: np.ndarray, done: np.ndarray, ends: np.ndarray) -> None:
        self.frames += len(done)
        self._returns += reward
        self._lengths += 1
        self._is_init = done
        if ends.size:
            self._episodes += [(float(self._returns[i]), int(self._lengths[i])) for i in ends]
            self._returns[ends], self._lengths[ends] = 0.0, 0
            self._traj_ids[ends] = self._traj_ids.max() + 1 + np.arange(ends.size)

    def _split(self, observation: Any) -> list[np.ndarray]:  # noqa: ANN401
        return split(observation, self._leaves)

    def _check_observation(self, observation: list[np.ndarray]) -> None:
        for i in self._float_leaves:
            self._check(self._leaves[i].path, observation[i])

    def _check(self, name: str, values: np.ndarray) -> None:
        check_finite(values, name, f"at frames {self.frames}")


def _first(reasons: Iterable[str | None]) -> str | None:
    """The first reason that there is, with its env."""
    return next((f"env {i}: {reason}" for i, reason in enumerate(reasons) if reason is not None), None)


def _columns(leaves: tuple[Leaf, ...], action_leaves: tuple[Leaf, ...]) -> list[tuple[Key, tuple[int, ...], Any]]:
    """Key, shape and dtype of all that a row consists of, in the order of `_Rows`."""
    after = [Leaf(leaf.name, next_key(leaf.key), leaf.space) for leaf in leaves]
    return [
        *((leaf.key, leaf.space.shape or (), leaf.space.dtype) for leaf in (*leaves, *after, *action_leaves)),
        ("is_init", (1,), np.bool_),
        (("collector", "traj_ids"), (), np.int64),
        (("next", "reward"), (1,), np.float32),
        *((("next", name), (1,), np.bool_) for name in ("terminated", "truncated", "done")),
    ]


class _Rows:
    """The arrays [T, N, ...] of one rollout, in the spaces' dtypes: the first value written does not choose them."""

    def __init__(
        self, batch_size: tuple[int, int], columns: list[tuple[Key, tuple[int, ...], Any]], leaves: int
    ) -> None:
        self._batch_size = batch_size
        self._arrays = {key: np.empty(batch_size + shape, dtype) for key, shape, dtype in columns}
        arrays = [*self._arrays.values()]
        self.observation, self.next_observation = arrays[:leaves], arrays[leaves : 2 * leaves]
        *self.action, self.is_init, self.traj_ids, self.reward = arrays[2 * leaves : -3]
        self.terminated, self.truncated, self.done = arrays[-3:]

    def tensordict(self) -> TensorDict:
        """Return the rows; the TensorDict owns their memory."""
        return tensordict_of({key: torch.from_numpy(array) for key, array in self._arrays.items()}, self._batch_size)
