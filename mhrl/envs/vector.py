"""Vector envs of canonical envs, always in autoreset mode SAME_STEP."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, iterate

from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.faults import CLOSE_TIMEOUT, WATCHDOG, EnvError, Guard
from mhrl.envs.state import Plain
from mhrl.envs.workers import WorkerVectorEnv

Factory: TypeAlias = Callable[[], CanonicalEnv]

_log = logging.getLogger("mhrl")


def make_factory(
    factory: Callable[..., Any], kwargs: Mapping[str, Any] | None = None, action_mask: str | None = None
) -> Factory:
    """Return a callable that builds one canonical env, `CanonicalEnv(factory(**kwargs), action_mask)`.

    Raises:
        TypeError: From the returned callable, if `factory` returns a vector env or no `gymnasium.Env`.
        ValueError: From the returned callable, see `CanonicalEnv`.
    """
    return partial(_build, factory, dict(kwargs or {}), action_mask)


def make_vector_env(
    factory: Factory | Sequence[Factory],
    num_envs: int,
    vectorization_mode: Literal["sync", "async"] = "sync",
    autoreset_mode: str | AutoresetMode = "same_step",
    step_timeout: float = float("inf"),
) -> VectorEnv[Any, Any, Any]:
    """Build `num_envs` envs that step together.

    Observations that `reset` and `step` return are the vector env's own buffers, valid until the next step: whoever
    keeps them copies them, as `Collector` does. Nothing else changes them, nor `infos["final_obs"]`, because canonical
    envs hand out arrays of their own.

    What an env raises, in its constructor, in `reset` or `step`, ends in an `EnvError` with the env's index; so does an
    env that does not answer within `step_timeout`. Then nothing but `close` is left to call, which takes some seconds
    at most and never raises. In mode `sync` a call that hangs inside a C library cannot be interrupted, and an env that
    ends its process ends the run.

    Args:
        factory: What `make_factory` returned, for all envs; or one for each env.
        num_envs: Number of envs.
        vectorization_mode: `sync` steps them one after the other in this process. `async` gives each a process, started
            through a fork server: this process may have threads (torch, wandb), which makes a plain fork unsafe. The
            calling script therefore needs its `if __name__ == "__main__":` guard.
        autoreset_mode: `same_step`, or gymnasium's `AutoresetMode.SAME_STEP`.
        step_timeout: Seconds that an env has to be built, to reset, to step; with `async` for a step and the reset
            that follows it together.

    Raises:
        ValueError: If another autoreset or vectorization mode is asked for, or the number of envs is not right.
        EnvError: If a factory fails, or does not return one env.
    """
    name = autoreset_mode.name if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
    if name.replace("_", "").lower() != "samestep":
        raise ValueError(
            f"autoreset_mode {name!r} is not supported, only 'same_step': it alone gives every step a true transition"
        )
    factories = list(factory) if isinstance(factory, Sequence) else [factory] * num_envs
    if num_envs < 1 or len(factories) != num_envs:
        raise ValueError(f"num_envs must be at least 1 and equal the number of factories, got {num_envs}")
    if vectorization_mode not in ("sync", "async"):
        raise ValueError(f"vectorization_mode must be 'sync' or 'async', got {vectorization_mode!r}")
    kind = LocalVectorEnv if vectorization_mode == "sync" else WorkerVectorEnv
    # Also with workers: gymnasium builds one more env here, to see its spaces.
    end = WATCHDOG.start(step_timeout)
    try:
        return kind([partial(_build_guarded, one, i, step_timeout) for i, one in enumerate(factories)], step_timeout)
    finally:
        end()


def reset_envs(env: VectorEnv[Any, Any, Any], mask: np.ndarray) -> Any:  # noqa: ANN401
    """Reset some envs of a vector env in mid-episode, without a seed; the others are not touched.

    Args:
        env: From `make_vector_env`.
        mask: `[N]` bool, which envs.

    Returns:
        The observation batch. Rows of the other envs are as the vector env's last step or reset left them.
    """
    observation, _ = env.reset(options={"reset_mask": np.asarray(mask, np.bool_)})
    return observation


def snapshots(env: VectorEnv[Any, Any, Any]) -> list[Plain | None]:
    """Return the snapshot of each env, None where there is none."""
    envs: Any = env  # gymnasium types `call` in its subclasses only
    return list(envs.call("take_snapshot"))


def restore_envs(env: VectorEnv[Any, Any, Any], states: Sequence[Plain | None]) -> list[str | None]:
    """Put each env into the state of its snapshot; they must have been reset once.

    Returns:
        For each env None, or why it is not in that state: it then needs a reset (`reset_envs`).
    """
    envs: Any = env
    envs.set_attr("snapshot", list(states))
    return list(envs.get_attr("inexact"))


@final
class LocalVectorEnv(SyncVectorEnv[Any, Any]):
    """gymnasium's `SyncVectorEnv` in autoreset mode SAME_STEP, that closes all its envs whatever happens.

    `infos` of a step hold `final_obs` and nothing else, for canonical envs have none.

    Args:
        factories: one for each env.
        timeout: seconds that an env has for each answer.

    Raises:
        EnvError: from every method but `close`: an env raised, or did not answer in time.
    """

    def __init__(self, factories: Sequence[Factory], timeout: float) -> None:
        self._end_watch = WATCHDOG.start(timeout)
        self._close_timeout = min(timeout, CLOSE_TIMEOUT)
        self._built: list[CanonicalEnv] = []
        try:
            for factory in factories:
                self._built.append(factory())
            built = [partial(_return, env) for env in self._built]
            super().__init__(built, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException:
            self.close()
            raise

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:  # noqa: ANN401
        """Step every env, and reset those whose episodes end."""
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, iterate(self.action_space, actions), strict=True)):
            observation, self._rewards[i], terminated, truncated, _ = env.step(action)
            self._terminations[i], self._truncations[i] = terminated, truncated
            if terminated or truncated:
                infos = self._add_info(infos, {"final_obs": observation}, i)
                observation, _ = env.reset()
            self._env_obs[i] = observation
        self._observations = concatenate(self.single_observation_space, self._env_obs, self._observations)
        return self._observations, self._rewards.copy(), self._terminations.copy(), self._truncations.copy(), infos

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Close every env within some seconds; what one raises is logged."""
        for i, env in enumerate(self._built):
            env.guard = Guard(i, self._close_timeout)
            try:
                env.close()
            except EnvError as error:
                _log.warning("%s, while it closed", error)
        self._end_watch()


def env_seeds(seed: int, num_envs: int, role: Literal["train", "eval"]) -> list[int]:
    """Return one reset seed in `[0, 2**31)` for each env, pairwise different.

    Train seeds are even and eval seeds odd: no train env shares a seed with an eval env, of this or another run.

    Raises:
        ValueError: If `seed` is negative or `role` is unknown.
    """
    if role not in ("train", "eval"):
        raise ValueError(f"role must be 'train' or 'eval', got {role!r}")
    parity = int(role == "eval")
    generator = np.random.default_rng(np.random.SeedSequence([seed, parity]))
    return [2 * int(half) + parity for half in generator.choice(2**30, size=num_envs, replace=False)]


def build_native(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return `factory(**kwargs)`, which must be one env.

    Raises:
        TypeError: If it is not.
    """
    env = factory(**kwargs)
    if isinstance(env, VectorEnv):
        raise TypeError(f"an env factory must return one env, got the vector env {env}; set num_envs instead")
    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"an env factory must return a gymnasium.Env, got {type(env).__name__}: {env!r}")
    return env


def _build(factory: Callable[..., Any], kwargs: Mapping[str, Any], action_mask: str | None) -> CanonicalEnv:
    return CanonicalEnv(build_native(factory, kwargs), action_mask)


def _build_guarded(factory: Factory, index: int, timeout: float) -> CanonicalEnv:
    guard = Guard(index, timeout)
    with guard:
        env = factory()
    env.guard = guard
    return env


def _return(env: CanonicalEnv) -> CanonicalEnv:
    return env
