"""What is found out about an env before a run: its leaves, where its masks are, and what gymnasium thinks of it."""

import logging
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast, final

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.faults import EnvError
from mhrl.envs.masks import MASK, mask_key
from mhrl.envs.sampling import uniform_actions
from mhrl.envs.spaces import EnvSpaces, join
from mhrl.envs.vector import build_native, make_vector_env

_log = logging.getLogger("mhrl")

_HARMLESS = (
    "is different from the unwrapped version",  # it is the wrapped env that is used
    "recommend using a symmetric and normalized space",  # heads scale actions themselves
    "observation space minimum value is -infinity",
    "observation space maximum value is infinity",
    "share an object",  # canonical envs copy what an env returns
)
"""What gymnasium says of many a stock env, and what makes no difference to a canonical one."""


def inspect_env(
    factory: Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    action_mask: str = "auto",
    vectorization_mode: Literal["sync", "async"] = "sync",
    step_timeout: float = float("inf"),
) -> tuple[EnvSpaces, str | None]:
    """Build one env, look at it, let gymnasium's `check_env` try it, and close it.

    What the check complains about is logged as warnings and stops nothing: a canonical env is more tolerant, and a real
    fault will show again. The process's generators (`random`, `np.random`) are left as they were.

    Args:
        factory: Builds one env, as for `make_factory`.
        kwargs: Its arguments.
        action_mask: As in the config: `none`, `info`, the key of a part of the observation, or `auto`: `info` if the
            info of a reset has an entry `action_mask` and something in the action space is discrete, else `none`.
        vectorization_mode: `async` does it in a process of its own, which an env may bring down.
        step_timeout: Seconds that the env has to be built, to reset once, and for the whole check.

    Returns:
        Its leaves, and where its masks are, as `make_factory` takes it.

    Raises:
        EnvError: If it cannot be built, its spaces are not supported, or it cannot be reset to look for masks.
    """
    source = None if action_mask in ("auto", "none") else action_mask
    with _generators_kept():
        build = cast(Any, partial(_build, factory, dict(kwargs or {}), source))
        env: Any = make_vector_env(build, 1, vectorization_mode, step_timeout=step_timeout)
        try:
            if action_mask == "auto" and env.call("finds_masks")[0]:
                source = "info"
            (spaces,) = env.get_attr("settled_spaces")
            try:
                (complaints,) = env.call("complaints")
            except EnvError as error:
                complaints = [f"it did not finish: {error}"]
        finally:
            env.close()
    for complaint in complaints:
        _log.warning("gymnasium's check of the env: %s", complaint)
    return spaces, source


@final
class _Inspected(CanonicalEnv):
    """A canonical env that answers questions about itself, through a vector env."""

    def __init__(self, env: gymnasium.Env[Any, Any], action_mask: str | None) -> None:
        super().__init__(env, action_mask)
        self._settled: CanonicalEnv = self

    def finds_masks(self) -> bool:
        """Whether the info of a reset has masks, for discrete leaves that there are; then they are taken from there."""
        if not any(leaf.discrete for leaf in self.spaces.actions):
            return False
        with self.guard:
            found = MASK in self.env.reset()[1]
            if found:
                self._settled = CanonicalEnv(self.env, "info")
        return found

    @property
    def settled_spaces(self) -> EnvSpaces:
        """The leaves, with those masks."""
        return self._settled.spaces

    def complaints(self) -> list[str]:
        """What gymnasium's check has to say."""
        errors: list[str] = []
        with self.guard, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                env = _Legal(self._settled) if self._settled.spaces.masks else self.env
                check_env(env, skip_render_check=True, skip_close_check=True)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
        said = [str(one.message) for one in caught if "WARN: " in str(one.message)] + errors
        plain = dict.fromkeys(re.sub(r"\x1b\[\d+m|WARN: ", "", text) for text in said)
        return [text for text in plain if not any(words in text for words in _HARMLESS)]


@final
class _Legal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The env itself, but with a legal action in place of each that it is given: the check knows nothing of masks.

    Args:
        canonical: Says what is legal.
    """

    def __init__(self, canonical: CanonicalEnv) -> None:
        super().__init__(canonical.env)
        self._canonical = canonical
        self._rng = np.random.default_rng(0)
        self._masks: dict[str, np.ndarray] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset; the same actions follow each reset, for the check compares what they lead to."""
        self._rng = np.random.default_rng(0)
        observation, info = self.env.reset(seed=seed, options=options)
        self._masks = self._canonical.masks_of(observation, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step with a legal action."""
        spaces = self._canonical.spaces
        masks = {mask.key: self._masks[mask.name][None] for mask in spaces.masks}
        legal = [uniform_actions(self._rng, leaf, 1, masks.get(mask_key(leaf)))[0] for leaf in spaces.actions]
        observation, reward, terminated, truncated, info = self.env.step(
            self._canonical.native_action(join(legal, spaces.actions))
        )
        self._masks = self._canonical.masks_of(observation, info)
        return observation, reward, terminated, truncated, info


def _build(factory: Callable[..., Any], kwargs: dict[str, Any], action_mask: str | None) -> _Inspected:
    return _Inspected(build_native(factory, kwargs), action_mask)


@contextmanager
def _generators_kept() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
