"""Replay: one file a kind."""

from mhrl.replay.base import Replay
from mhrl.replay.memory import transition_bytes
from mhrl.replay.prioritised import PrioritisedReplay
from mhrl.replay.records import saved_rows
from mhrl.replay.uniform import UniformReplay

__all__ = ["PrioritisedReplay", "Replay", "UniformReplay", "saved_rows", "transition_bytes"]
