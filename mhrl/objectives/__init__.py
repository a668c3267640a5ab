"""Objectives: one file a family."""

from mhrl.objectives.base import Objective
from mhrl.objectives.ddpg_loss import DDPGLoss
from mhrl.objectives.value_based import ValueBased

__all__ = ["DDPGLoss", "Objective", "ValueBased"]
