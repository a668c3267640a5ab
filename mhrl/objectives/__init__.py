"""Objectives: one file a family."""

from mhrl.objectives.base import Objective
from mhrl.objectives.ddpg import DDPG
from mhrl.objectives.ddpg_loss import DDPGLoss

__all__ = ["DDPG", "DDPGLoss", "Objective"]
