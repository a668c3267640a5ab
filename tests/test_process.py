import random

import numpy as np
import pytest
import torch

from mhrl.config import ConfigError
from mhrl.process import resolve_device, set_up_process


def test_it_seeds_every_global_generator_and_bounds_the_threads():
    draws = []
    for _ in range(2):
        set_up_process(7, 1)
        draws.append((random.random(), np.random.random(), torch.rand(()).item()))
        assert torch.get_num_threads() == 1
    assert draws[0] == draws[1]
    set_up_process(8, 1)
    assert draws[0] != (random.random(), np.random.random(), torch.rand(()).item())


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(ConfigError, match=rf"device={name} is not available"):
            resolve_device(name)
