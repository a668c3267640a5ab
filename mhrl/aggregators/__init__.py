"""Backward aggregators: one file a rule."""

from mhrl.aggregators.base import BackwardAggregator, row_statistics
from mhrl.aggregators.fan_out import FanOut
from mhrl.aggregators.weighted_sum import WeightedSum

__all__ = ["BackwardAggregator", "FanOut", "WeightedSum", "row_statistics"]
