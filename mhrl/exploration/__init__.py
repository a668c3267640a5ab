"""Exploration: noise around the greedy action. One file a kind of noise, each a choice of the group `exploration`."""

from mhrl.exploration.base import HeadNoise
from mhrl.exploration.gaussian import Gaussian
from mhrl.exploration.noise import GaussianNoise
from mhrl.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeck
from mhrl.exploration.policy import ExploringPolicy

__all__ = ["ExploringPolicy", "Gaussian", "GaussianNoise", "HeadNoise", "OrnsteinUhlenbeck"]
