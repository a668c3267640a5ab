"""Environments: spaces as named leaves, canonical observations, vector envs, probe envs.

Env workers import this package: it knows numpy and gymnasium only.
"""

from mhrl.envs.canonical import CanonicalEnv
from mhrl.envs.finite import NonFiniteError, check_finite
from mhrl.envs.spaces import Key, Leaf, action_leaves, conform, observation_leaves
from mhrl.envs.vector import env_seeds, make_factory, make_vector_env

__all__ = [
    "CanonicalEnv",
    "Key",
    "Leaf",
    "NonFiniteError",
    "action_leaves",
    "check_finite",
    "conform",
    "env_seeds",
    "make_factory",
    "make_vector_env",
    "observation_leaves",
]
