"""Where numbers from an env or a policy enter: none may be NaN or infinite."""

from typing import Literal

import numpy as np

# Rewards are stored, and networks compute, in float32: a larger number is an infinity there.
_LARGEST = np.finfo(np.float32).max


class NonFiniteError(ValueError):
    """The env or the policy returned a NaN or an infinity (in float32).

    Attributes:
        envs: which envs.
    """

    def __init__(self, message: str, envs: tuple[int, ...]) -> None:
        super().__init__(message)
        self.envs = envs


def check_finite(values: np.ndarray, name: str, when: str, origin: Literal["from", "for"] = "from") -> None:
    """Refuse numbers that are not finite in float32.

    Args:
        values: `[N, *]`, one row an env.
        name: what they are, for the message.
        when: where the run is, for the message.
        origin: `from` an env, or `for` it: an action comes from the policy.

    Raises:
        NonFiniteError: naming the envs and the values.
    """
    # The sum of squares takes one pass; False for NaN, and for what is large enough to be looked at one by one.
    if np.vdot(values, values) <= _LARGEST or (finite := finite_rows(values)).all():
        return
    bad = ~finite
    envs = tuple(np.flatnonzero(bad).tolist())
    numbers = ", ".join(map(str, envs))
    raise NonFiniteError(f"non-finite {name} {origin} env {numbers} {when}: {values[bad]}", envs)


def finite_rows(values: np.ndarray) -> np.ndarray:
    """Return which rows of `values` `[N, *]` are finite in float32: `[N]` bool."""
    return (np.abs(values) <= _LARGEST).reshape(len(values), -1).all(-1)
