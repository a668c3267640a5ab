"""What a run sets for its whole process: seeds, threads, the device."""

import logging

import torch

from mhrl.config import ConfigError
from mhrl.generators import seed_generators


def set_up_process(seed: int, threads: int) -> None:
    """Seed the global generators and bound torch's threads.

    Network initialisation draws from torch's generator, users' envs may draw from any. Every run of a sweep calls this,
    so that a run inside a sweep equals the run alone.
    """
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it greets on stdout
    torch.set_num_threads(threads)
    seed_generators(seed)


def resolve_device(name: str) -> torch.device:
    """The device of the config.

    Raises:
        ConfigError: if there is no such device here.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device={name} is not available: {str(error).splitlines()[0]}") from error
    return device
