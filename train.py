"""Train an agent from a checkout: `python train.py +experiment=ddpg [key=value ...]`. `mhrl-train` is the same."""

from mhrl.cli import train

if __name__ == "__main__":
    train()
