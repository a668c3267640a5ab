"""One env in canonical form: observations it does not reuse, in the space's dtype, under flat names."""

import contextlib
import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mhrl.envs.faults import Guard
from mhrl.envs.lander import recorded
from mhrl.envs.spaces import Leaf, leaf_paths, observation_leaves
from mhrl.envs.state import NoSnapshotError, Plain, capture, restore


class CanonicalEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes what an env returns safe to keep.

    Many envs write into the array they returned before, return another dtype than their space's, or change the action
    they are given in place. Here every observation is the caller's own array of exactly the space's dtype and shape,
    and the env gets its own contiguous copy of the action. A Dict observation becomes a flat `{name: array}`.

    Infos are dropped: nothing here reads them, and batching them costs a vector env more than many a step and
    fails when an entry changes its shape or cannot be pickled.

    `snapshot` is the env's whole state in mid-episode, see `mhrl.envs.state`.

    Raises:
        ValueError: At construction, if the observation space is not supported. From `reset` and `step`, if an
            observation is missing, has another shape, or cannot be cast to its space's dtype without loss of kind;
            if an action has another shape than its space; if the reward is not a number.

    Attributes:
        guard: The context in which the env is called; a vector env sets a `Guard`.
        alone: Whether the env has a process to itself: then the process's global generators (`random`, `np.random`)
            are its own, seeded by a seeded reset and part of a snapshot.
        inexact: Why the last snapshot could not be taken, or could not be restored, so that a reset is needed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(recorded(env))
        self.guard: Guard | contextlib.nullcontext[None] = contextlib.nullcontext()
        self.alone = False
        self.inexact: str | None = None
        native = env.observation_space
        self.leaves = observation_leaves(native)
        self._paths = [path for path, _ in leaf_paths(native)]
        if isinstance(native, spaces.Dict):
            # Pairs, because a plain dict would be sorted by the joined names.
            self.observation_space = spaces.Dict([(leaf.name, leaf.space) for leaf in self.leaves])
        else:
            self.observation_space = self.leaves[0].space
        self._nested = isinstance(native, spaces.Dict)
        self._box = env.action_space if isinstance(env.action_space, spaces.Box) else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; a seed also seeds its spaces, from which some envs sample."""
        with self.guard:
            if seed is not None:
                self.unwrapped.observation_space.seed(seed)
                self.unwrapped.action_space.seed(seed)
                if self.alone:
                    random.seed(seed)
                    np.random.seed(seed)
            observation, _ = self.env.reset(seed=seed, options=options)
            return self._canonical(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step the env with a copy of `action` in its space's dtype."""
        with self.guard:
            if self._box is not None:
                action = np.array(action, dtype=self._box.dtype, order="C")
                if action.shape != self._box.shape:
                    raise ValueError(f"action: expected shape {self._box.shape}, got {action.shape}")
            observation, reward, terminated, truncated, _ = self.env.step(action)
            try:
                reward = float(reward)
            except (TypeError, ValueError) as error:
                raise ValueError(f"reward: expected a number, got {reward!r}") from error
            return self._canonical(observation), reward, bool(terminated), bool(truncated), {}

    def close(self) -> None:
        """Close the env."""
        with self.guard:
            super().close()

    @property
    def snapshot(self) -> Plain | None:
        """The env's whole state; None where it cannot be captured. Set, the env is in that state, or `inexact`."""
        return self.take_snapshot()

    @snapshot.setter
    def snapshot(self, state: Plain | None) -> None:
        with self.guard:
            self.inexact = None
            try:
                if state is None:
                    capture(self.env)  # says why
                    raise NoSnapshotError("it had no snapshot")
                restore(self.env, state["env"])
            except NoSnapshotError as error:
                self.inexact = str(error)
                return
            if self.alone and "process" in state:
                _set_process_state(state["process"])

    def take_snapshot(self) -> Plain | None:
        """`snapshot` as a call: gymnasium looks an attribute up twice, and a capture takes time."""
        with self.guard:
            self.inexact = None
            try:
                state = capture(self.env)
            except NoSnapshotError as error:
                self.inexact = str(error)
                return None
            return {"env": state, "process": _process_state()} if self.alone else {"env": state}

    def _canonical(self, observation: Any) -> Any:  # noqa: ANN401
        if not self._nested:
            return _own(self.leaves[0], observation)
        return {
            leaf.name: _own(leaf, _at(observation, path)) for leaf, path in zip(self.leaves, self._paths, strict=True)
        }


def _process_state() -> Plain:
    version, words, gauss = random.getstate()
    return {"random": [version, list(words), gauss], "numpy": np.random.get_state(legacy=False)}


def _set_process_state(state: Plain) -> None:
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


def _at(observation: Any, path: tuple[Any, ...]) -> Any:  # noqa: ANN401
    value = observation
    for depth, key in enumerate(path):
        if not isinstance(value, dict) or key not in value:
            missing = ".".join(map(str, ("observation", *path[: depth + 1])))
            raise ValueError(f"{missing}: the env's observation space has it, its observation lacks it: {observation}")
        value = value[key]
    return value


def _own(leaf: Leaf, value: Any) -> np.ndarray:  # noqa: ANN401
    array = np.array(value, order="C")
    space: Any = leaf.space
    if array.dtype == space.dtype and array.shape == space.shape:
        return array
    if array.shape == space.shape and np.can_cast(array.dtype, space.dtype, "same_kind"):
        cast = array.astype(space.dtype)
        # "same_kind" lets a wide integer wrap round in a narrow one.
        if cast.dtype.kind == "f" or (cast == array).all():
            return cast
    got = f"{array.dtype} of shape {array.shape}: {value!r}"
    raise ValueError(f"{leaf.path}: expected {space.dtype} of shape {space.shape} ({space}), got {got}")
