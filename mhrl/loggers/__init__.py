"""Listeners of a run: the console and `train.log`, `metrics.jsonl`, Weights & Biases."""

from mhrl.loggers.base import HeadRow, Logger, Loggers, LossRow, Outcome, RunInfo
from mhrl.loggers.console import ConsoleLogger
from mhrl.loggers.jsonl import JsonlLogger, best_evaluation
from mhrl.loggers.wandb import WandbLogger, has_key, resolve_mode

__all__ = [
    "ConsoleLogger",
    "HeadRow",
    "JsonlLogger",
    "Logger",
    "Loggers",
    "LossRow",
    "Outcome",
    "RunInfo",
    "WandbLogger",
    "best_evaluation",
    "has_key",
    "resolve_mode",
]
