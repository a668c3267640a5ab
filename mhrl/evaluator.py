"""The evaluator: greedy episodes in envs of its own."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

import gymnasium as gym
import numpy as np

from mhrl.envs import Leaf, check_finite, conform, join, split
from mhrl.generators import isolated_generators
from mhrl.policy import GreedyPolicy, leaf_tensors

LONG = 50_000
"""Steps after which an evaluation warns: an env that never ends would go on for ever in silence."""

_log = logging.getLogger("mhrl")

MAX_ENVS = 10
"""Episodes are shared out over at most this many envs, which act in one batch."""


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted raw returns and lengths, one per episode, in order of env and time."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    def metrics(self) -> dict[str, float]:
        """`eval/return_mean`, `eval/return_std` (population), `eval/length_mean`."""
        return {
            "eval/return_mean": float(np.mean(self.returns)),
            "eval/return_std": float(np.std(self.returns)),
            "eval/length_mean": float(np.mean(self.lengths)),
        }


@final
class Evaluator:
    """Run the greedy policy for a fixed number of episodes.

    Each env gets a fixed share of the episodes, so that short ones are not favoured. Every evaluation starts from
    the same seeds: evaluations of one run are comparable, and `scripts/evaluate.py` repeats them exactly.
    Nothing that training uses is touched.

    Args:
        env: a vector env of the evaluator's own, SAME_STEP.
        policy: acts; not trained here.
        observation_leaves: what an observation of one env consists of, masks too: its `spaces.seen`.
        action_leaves: one env's `spaces.actions`.
        seeds: one per env.
        episodes: how many.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        policy: GreedyPolicy,
        *,
        observation_leaves: Sequence[Leaf],
        action_leaves: Sequence[Leaf],
        seeds: Sequence[int],
        episodes: int,
    ) -> None:
        self.env = env
        self.policy = policy
        self.observation_leaves = tuple(observation_leaves)
        self.action_leaves = tuple(action_leaves)
        self.seeds: Any = list(seeds)  # gymnasium annotates one int only
        self.shares = [episodes // env.num_envs + (i < episodes % env.num_envs) for i in range(env.num_envs)]

    def run(self) -> Evaluation:
        """Evaluate in evaluation mode, with the global random generators seeded and put back afterwards.

        Raises:
            NonFiniteError: naming the env whose observation or reward, or the action for it, is NaN or infinite.
            EmptyMaskError: naming the env that has no legal action.
        """
        self.policy.eval()
        with isolated_generators(self.seeds[0]):
            return self._play()

    def _play(self) -> Evaluation:
        """Play every env's share of episodes and return their returns and lengths."""
        count = self.env.num_envs
        returns: list[list[float]] = [[] for _ in range(count)]
        lengths: list[list[int]] = [[] for _ in range(count)]
        total, length = np.zeros(count), np.zeros(count, dtype=int)
        observation, _ = self.env.reset(seed=self.seeds)
        self._check(observation)
        steps = 0
        while any(len(done) < share for done, share in zip(returns, self.shares, strict=True)):
            observation, reward, terminated, truncated, _ = self.env.step(self._act(observation))
            check_finite(reward, "reward", "in an evaluation")
            self._check(observation)
            steps += 1
            if steps == LONG:
                _log.warning("an evaluation has run for %d steps: does the env have a time limit?", steps)
            total += reward
            length += 1
            for i in np.flatnonzero(terminated | truncated):
                if len(returns[i]) < self.shares[i]:
                    returns[i].append(float(total[i]))
                    lengths[i].append(int(length[i]))
                total[i], length[i] = 0.0, 0
        return Evaluation(tuple(chain.from_iterable(returns)), tuple(chain.from_iterable(lengths)))

    def _act(self, observation: dict[str, np.ndarray] | np.ndarray) -> Any:  # noqa: ANN401
        """The greedy action of every env."""
        proposed = self.policy.act(leaf_tensors(observation, self.observation_leaves))
        executed = []
        for leaf in self.action_leaves:
            action = proposed[leaf.key].numpy(force=True)
            check_finite(action, leaf.name, "in an evaluation", "for")
            executed.append(conform(action, leaf.box))
        return join(executed, self.action_leaves)

    def close(self) -> None:
        """Close the envs."""
        self.env.close()

    def _check(self, observation: dict | np.ndarray) -> None:
        """Refuse an observation that the policy could not act on."""
        for leaf, values in zip(self.observation_leaves, split(observation, self.observation_leaves), strict=True):
            if np.dtype(leaf.space.dtype).kind == "f":
                check_finite(values, leaf.path, "in an evaluation")
