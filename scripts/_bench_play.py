"""Greedy episodes in one batch, as mhrl's own evaluator plays them, so that evaluating is the same work for all."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from _bench_contestant import Contestant
from gymnasium.vector import SyncVectorEnv, VectorEnv

EPISODES = 10
"""Of an evaluation."""


def playground(env_id: str, episodes: int) -> VectorEnv:
    """An env for each episode."""
    return SyncVectorEnv([partial(gym.make, env_id)] * episodes)


def play(contestant: Contestant, envs: VectorEnv, seeds: Sequence[int]) -> float:
    """Mean return of one greedy episode in each env, begun with its seed."""
    total, playing = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    each: Any = list(seeds)  # gymnasium annotates one int only
    observations, _ = envs.reset(seed=each)
    while playing.any():
        observations, rewards, terminated, truncated, _ = envs.step(contestant.act(observations))
        total += rewards * playing
        playing &= ~(terminated | truncated)
    return float(total.mean())
