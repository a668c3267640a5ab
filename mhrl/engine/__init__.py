"""Engines: the only code that calls backward and steps the optimizer."""

from mhrl.engine.base import Engine, NonFiniteLossError, StepResult
from mhrl.engine.eager import EagerEngine

__all__ = ["EagerEngine", "Engine", "NonFiniteLossError", "StepResult"]
