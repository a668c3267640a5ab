"""The process's global random generators: users' envs may draw from any of them."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states() -> dict[str, Any]:
    """Their states, those of every GPU in use too, as tuples, numpy arrays and tensors."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state_all()} if torch.cuda.is_initialized() else {})


def restore_generators(states: Mapping[str, Any]) -> None:
    """Put back what `generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_initialized():
        for i, state in enumerate(states["cuda"][: torch.cuda.device_count()]):  # there may be fewer now
            torch.cuda.set_rng_state(state, i)


@contextmanager
def isolated_generators(seed: int) -> Iterator[None]:
    """Seed the global generators for a while and put them back afterwards."""
    states = generator_states()
    seed_generators(seed)
    try:
        yield
    finally:
        restore_generators(states)
