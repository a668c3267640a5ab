"""Where numbers from an env or a policy enter: none may be NaN or infinite."""

import numpy as np

# Rewards are stored, and networks compute, in float32: a larger number is an infinity there.
_LARGEST = np.finfo(np.float32).max


class NonFiniteError(ValueError):
    """The env or the policy returned a NaN or an infinity (in float32)."""


def check_finite(values: np.ndarray, name: str, when: str) -> None:
    """Refuse numbers that are not finite in float32.

    Args:
        values: `[N, *]`, one row an env.
        name: what they are, for the message.
        when: where the run is, for the message.

    Raises:
        NonFiniteError: naming the envs and the values.
    """
    if np.abs(values).max() <= _LARGEST:  # False for NaN
        return
    bad = ~(np.abs(values) <= _LARGEST).reshape(len(values), -1).all(-1)
    envs = ", ".join(map(str, np.flatnonzero(bad)))
    raise NonFiniteError(f"non-finite {name} from env {envs} {when}: {values[bad]}")
