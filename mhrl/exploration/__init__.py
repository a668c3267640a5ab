"""Exploration: noise around the greedy action, and random actions. One file a kind, each a choice of `exploration`."""

from mhrl.exploration.base import HeadNoise
from mhrl.exploration.epsilon_greedy import EpsilonGreedy
from mhrl.exploration.gaussian import Gaussian
from mhrl.exploration.noise import ActionNoise
from mhrl.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeck
from mhrl.exploration.policy import ExploringPolicy

__all__ = ["ActionNoise", "EpsilonGreedy", "ExploringPolicy", "Gaussian", "HeadNoise", "OrnsteinUhlenbeck"]
