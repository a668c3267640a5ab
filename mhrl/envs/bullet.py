"""Envs of pybullet-envs-gymnasium, the `bullet` extra."""

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Literal, final

import gymnasium
from gymnasium.error import DependencyNotInstalled

_PACKAGE = "pybullet_envs_gymnasium"


@final
class BulletEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A registered env of pybullet-envs-gymnasium, such as `HalfCheetahBulletEnv-v0` or `ReacherBulletEnv-v0`.

    A seeded reset gives equal episodes for equal actions, in any env of any process on the same machine: the first
    episode of an env, whose first reward is off by some hundredths otherwise, is begun and left at construction.

    PyBullet's state is in a server in C that the env knows by a number: an env in mid-episode cannot be captured, and a
    run that is resumed begins a new episode. `close` ends the server.

    Args:
        id: The registered id, without a module.
        render_mode: None, `rgb_array` or `human`.

    Raises:
        gymnasium.error.DependencyNotInstalled: If the extra is not installed; names it.
        ValueError: If `id` is no env of that package; names those that are.
    """

    state_dict = None

    def __init__(self, id: str, render_mode: Literal["rgb_array", "human"] | None = None) -> None:
        try:
            with _silence():  # PyBullet greets on import, and says `argv[0]=` for every server
                super().__init__(_make(id, render_mode))
                self.env.reset()
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled(f"{error}. This env needs an extra: pip install 'mhrl[bullet]'") from error


def _make(id: str, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    importlib.import_module(_PACKAGE)  # registers its envs
    known = [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(_PACKAGE)]
    if id not in known:
        raise ValueError(f"id is {id!r}: one of {', '.join(known)} is expected")
    return gymnasium.make(id, render_mode=render_mode)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop what C code prints on standard output and error meanwhile; Python's own errors are raised, not printed."""
    c = ctypes.CDLL(None)
    sys.stdout.flush()
    sys.stderr.flush()
    c.fflush(None)
    kept = [(fd, os.dup(fd)) for fd in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for fd, _ in kept:
            os.dup2(nowhere, fd)
        yield
    finally:
        c.fflush(None)  # C keeps what it prints to a pipe until later
        for fd, copy in kept:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(nowhere)
