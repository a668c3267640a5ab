"""Environments: spaces as named leaves, canonical observations, vector envs, probe envs.

Env workers import this package: it knows numpy and gymnasium only.
"""

from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.faults import EnvError
from mhrl.envs.finite import NonFiniteError, check_finite, finite_rows
from mhrl.envs.spaces import Key, Leaf, action_leaves, conform, observation_leaves, split
from mhrl.envs.state import NoSnapshotError, capture, restore
from mhrl.envs.vector import env_seeds, make_factory, make_vector_env, reset_envs, restore_envs, snapshots

__all__ = [
    "CanonicalEnv",
    "EnvError",
    "Key",
    "Leaf",
    "NoSnapshotError",
    "NonFiniteError",
    "action_leaves",
    "capture",
    "check_finite",
    "conform",
    "env_seeds",
    "finite_rows",
    "make_factory",
    "make_vector_env",
    "observation_leaves",
    "reset_envs",
    "restore",
    "restore_envs",
    "snapshots",
    "split",
]
