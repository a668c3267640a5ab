"""Train an agent: `python train.py +experiment=ddpg [key=value ...]`."""

import os

# numpy's thread pool fights torch's; set before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hydra
from omegaconf import DictConfig

from mhrl.config import register

register()


@hydra.main(config_path="configs", config_name="train", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Compose the config and run it; heavy imports wait until a run begins, so that `--help` answers at once."""
    from mhrl.launch import run

    run(cfg)


if __name__ == "__main__":
    main()
