"""Environments: spaces as named leaves, canonical envs, action masks, vector envs, checks, probe envs.

Env workers import this package: it knows numpy and gymnasium only.
"""

from mhrl.envs.actions import action_leaves, conform
from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.checks import inspect_env
from mhrl.envs.faults import EnvError
from mhrl.envs.finite import NonFiniteError, check_finite, finite_rows
from mhrl.envs.masks import mask_key
from mhrl.envs.observations import observation_leaves
from mhrl.envs.sampling import EmptyMaskError, check_mask, uniform_actions
from mhrl.envs.spaces import EnvSpaces, Key, Leaf, join, next_key, split
from mhrl.envs.state import NoSnapshotError, capture, restore
from mhrl.envs.vector import env_seeds, make_factory, make_vector_env, reset_envs, restore_envs, snapshots

__all__ = [
    "CanonicalEnv",
    "EmptyMaskError",
    "EnvError",
    "EnvSpaces",
    "Key",
    "Leaf",
    "NoSnapshotError",
    "NonFiniteError",
    "action_leaves",
    "capture",
    "check_finite",
    "check_mask",
    "conform",
    "env_seeds",
    "finite_rows",
    "inspect_env",
    "join",
    "make_factory",
    "make_vector_env",
    "mask_key",
    "next_key",
    "observation_leaves",
    "reset_envs",
    "restore",
    "restore_envs",
    "snapshots",
    "split",
    "uniform_actions",
]
