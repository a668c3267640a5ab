"""One env in canonical form: its own arrays under flat names in, its own types out, and masks as observations."""

import contextlib
import logging
import random
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mhrl.envs.actions import action_leaves, canonical_action_space, to_native
from mhrl.envs.faults import Guard
from mhrl.envs.lander import recorded
from mhrl.envs.masks import MASK, MaskReader
from mhrl.envs.observations import at, key_paths, observation_leaves, own
from mhrl.envs.spaces import EnvSpaces
from mhrl.envs.state import NoSnapshotError, Plain, capture, restore

_log = logging.getLogger("mhrl")


class CanonicalEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes what an env returns safe to keep, and what it takes simple to make.

    Many envs write into the array they returned before, return another dtype than their space's, or change the action
    they are given in place. Here every observation is the caller's own array of exactly the space's dtype and shape.
    A Dict observation becomes a flat `{name: array}`.

    An action is the array of the one leaf of its space, or `{"action": {name: array}}` (`mhrl.envs.join`). The env gets
    its own types: ints, contiguous arrays of its own, dicts and tuples, with the values that `mhrl.envs.action_leaves`
    lists.

    Masks of the discrete action leaves become further entries of the observation, `action_mask` or
    `action_mask_<leaf>`: `[sum of the branches' sizes]` bool, true for what is legal. The observation is then a dict
    even if the env's own is not; that array is its entry `observation`.

    Infos are dropped: nothing here reads anything else of them, and batching them costs a vector env more than many a
    step and fails when an entry changes its shape or cannot be pickled.

    `snapshot` is the env's whole state in mid-episode, see `mhrl.envs.state`.

    Args:
        env: Any env.
        action_mask: Where the env says what is legal: None, nowhere; `info`, in the entry `action_mask` of the infos of
            reset and step; else in the part of its Dict observation with that key, which then is no observation leaf.
            See `mhrl.envs.masks.MaskReader` for how it may say it.

    Raises:
        ValueError: At construction, if the observation or action space is not supported, or cannot have masks from
            there. From `reset` and `step`, if an observation is missing, has another shape, or cannot be cast to its
            space's dtype without loss of kind; if a mask is not one; if an action has another shape than its space; if
            the reward is not a number.

    Attributes:
        spaces: The leaves of its observations and actions.
        native_action: Turns an action into one of the env's own.
        guard: The context in which the env is called; a vector env sets a `Guard`.
        alone: Whether the env has a process to itself: then the process's global generators (`random`, `np.random`)
            are its own, seeded by a seeded reset and part of a snapshot.
        inexact: Why the last snapshot could not be taken, or could not be restored, so that a reset is needed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], action_mask: str | None = None) -> None:
        super().__init__(recorded(env))
        self.guard: Guard | contextlib.nullcontext[None] = contextlib.nullcontext()
        self.alone = False
        self.inexact: str | None = None
        self._mask_key = None if action_mask == "info" else action_mask
        seen = env.observation_space if self._mask_key is None else _without(env.observation_space, self._mask_key)
        observations, actions = observation_leaves(seen), action_leaves(env.action_space)
        self._masks = None if action_mask is None else MaskReader(env.action_space, actions)
        self.spaces = EnvSpaces(observations, () if self._masks is None else self._masks.leaves, actions)
        if shared := {leaf.name for leaf in observations} & {leaf.name for leaf in self.spaces.masks}:
            raise ValueError(
                f"observation.{min(shared)} has the name of a mask; rename it, or take the masks from an observation "
                f"by env.action_mask=<its key>: {env.observation_space}"
            )
        self._may_mask = self._masks is None and any(leaf.discrete for leaf in actions)
        self._keys = list(key_paths(seen))
        self._bare = self._masks is None and not isinstance(seen, spaces.Dict)
        if self._bare:
            self.observation_space = observations[0].space
        else:
            # Pairs, because a plain dict would be sorted by the joined names.
            self.observation_space = spaces.Dict([(leaf.name, leaf.space) for leaf in self.spaces.seen])
        self.action_space = canonical_action_space(actions)
        self.native_action = to_native(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; a seed also seeds its spaces, from which some envs sample."""
        with self.guard:
            if seed is not None:
                self.unwrapped.observation_space.seed(seed)
                self.unwrapped.action_space.seed(seed)
                if self.alone:
                    random.seed(seed)
                    np.random.seed(seed)
            observation, info = self.env.reset(seed=seed, options=options)
            self._look_for_masks(info)
            return self._canonical(observation, info), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step the env with a copy of `action`, in the env's own types."""
        with self.guard:
            observation, reward, terminated, truncated, info = self.env.step(self.native_action(action))
            try:
                reward = float(reward)
            except (TypeError, ValueError) as error:
                raise ValueError(f"reward: expected a number, got {reward!r}") from error
            self._look_for_masks(info)
            return self._canonical(observation, info), reward, bool(terminated), bool(truncated), {}

    def _look_for_masks(self, info: dict[str, Any]) -> None:
        """Say it if there are masks that nobody asked for, such as those that a reset did not show."""
        if self._may_mask and info.get(MASK) is not None:
            self._may_mask = False
            warn_of_masks()

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

    def masks_of(self, observation: Any, info: dict[str, Any]) -> dict[str, np.ndarray]:  # noqa: ANN401
        """The masks by name that came with what the env itself returned."""
        if self._masks is None:
            return {}
        return self._masks.read(info.get(MASK) if self._mask_key is None else at(observation, (self._mask_key,)))

    def _canonical(self, observation: Any, info: dict[str, Any]) -> Any:  # noqa: ANN401
        leaves = self.spaces.observations
        if self._bare:
            return own(leaves[0], observation)
        seen = {leaf.name: own(leaf, at(observation, keys)) for leaf, keys in zip(leaves, self._keys, strict=True)}
        return seen | self.masks_of(observation, info)


def _without(space: gymnasium.Space[Any], key: str) -> spaces.Dict:
    """A Dict space without one of its parts."""
    if not isinstance(space, spaces.Dict) or key not in space.spaces:
        raise ValueError(f"env.action_mask is {key!r}, but the observation has no such part: {space}")
    return spaces.Dict([(name, part) for name, part in space.spaces.items() if name != key])


@cache
def warn_of_masks() -> None:
    """Say, once in a process, that there are masks which are not used."""
    _log.warning("the env's info has %s, which is not used: set env.action_mask=info to keep to it", MASK)


def _process_state() -> Plain:
    version, words, gauss = random.getstate()
    return {"random": [version, list(words), gauss], "numpy": np.random.get_state(legacy=False)}


def _set_process_state(state: Plain) -> None:
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
