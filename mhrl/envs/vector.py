"""Vector envs of canonical envs, always in autoreset mode SAME_STEP."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from mhrl.envs.canonical import CanonicalEnv

Factory: TypeAlias = Callable[[], CanonicalEnv]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def make_factory(factory: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> Factory:
    """Return a callable that builds one canonical env, `CanonicalEnv(factory(**kwargs))`.

    Raises:
        TypeError: From the returned callable, if `factory` returns a vector env or no `gymnasium.Env`.
    """
    return partial(_build, factory, dict(kwargs or {}))


def make_vector_env(
    factory: Factory | Sequence[Factory],
    num_envs: int,
    vectorization_mode: Literal["sync", "async"] = "sync",
    autoreset_mode: str | AutoresetMode = "same_step",
) -> VectorEnv[Any, Any, Any]:
    """Build `num_envs` envs that step together.

    Observations that `reset` and `step` return are the vector env's own buffers, valid until the next step: whoever
    keeps them copies them, as `Collector` does. Nothing else changes them, nor `infos["final_obs"]`, because canonical
    envs hand out arrays of their own.

    Args:
        factory: What `make_factory` returned, for all envs; or one for each env.
        num_envs: Number of envs.
        vectorization_mode: `sync` steps them one after the other in this process. `async` gives each a process, started
            through a fork server: this process may have threads (torch, wandb), which makes a plain fork unsafe. The
            calling script therefore needs its `if __name__ == "__main__":` guard.
        autoreset_mode: `same_step`, or gymnasium's `AutoresetMode.SAME_STEP`.

    Raises:
        ValueError: If another autoreset or vectorization mode is asked for, or the number of envs is not right.
        TypeError: If a factory does not return one env.
    """
    name = autoreset_mode.name if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
    if name.replace("_", "").lower() != "samestep":
        raise ValueError(
            f"autoreset_mode {name!r} is not supported, only 'same_step': it alone gives every step a true transition"
        )
    factories = list(factory) if isinstance(factory, Sequence) else [factory] * num_envs
    if num_envs < 1 or len(factories) != num_envs:
        raise ValueError(f"num_envs must be at least 1 and equal the number of factories, got {num_envs}")
    if vectorization_mode == "sync":
        return SyncVectorEnv(factories, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    if vectorization_mode != "async":
        raise ValueError(f"vectorization_mode must be 'sync' or 'async', got {vectorization_mode!r}")
    # The server imports this once; the workers it forks start in milliseconds.
    multiprocessing.set_forkserver_preload(["__main__", "mhrl.envs"])
    with _single_threaded_children():
        return AsyncVectorEnv(
            [partial(_build_in_worker, one, os.getpid()) for one in factories],
            shared_memory=True,
            copy=False,
            context="forkserver",
            autoreset_mode=AutoresetMode.SAME_STEP,
        )


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


def _build(factory: Callable[..., Any], kwargs: dict[str, Any]) -> CanonicalEnv:
    env = factory(**kwargs)
    if isinstance(env, VectorEnv):
        raise TypeError(f"an env factory must return one env, got the vector env {env}; set num_envs instead")
    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"an env factory must return a gymnasium.Env, got {type(env).__name__}: {env!r}")
    return CanonicalEnv(env)


def _build_in_worker(factory: Factory, main_pid: int) -> CanonicalEnv:
    # Ctrl-C reaches the whole process group, but the rollout under way must end before the main process saves and
    # stops. (AsyncVectorEnv also builds one env in the main process, whose handler stays.)
    if os.getpid() != main_pid:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return factory()


@contextmanager
def _single_threaded_children() -> Iterator[None]:
    # Maths libraries read these when they load; one thread pool per worker would oversubscribe the cores.
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
