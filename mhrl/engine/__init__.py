"""Engines: the only code that calls backward and steps the optimizer."""

from mhrl.engine.base import Engine, NonFiniteLossError, StepResult
from mhrl.engine.compiled import CompiledEngine
from mhrl.engine.eager import EagerEngine

__all__ = ["CompiledEngine", "EagerEngine", "Engine", "NonFiniteLossError", "StepResult"]
