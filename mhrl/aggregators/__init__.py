"""Backward aggregators: one file a rule."""

from mhrl.aggregators.adaptive_weighting import AdaptiveWeighting, NegativeLossError
from mhrl.aggregators.aligned_mtl import AlignedMTL
from mhrl.aggregators.base import BackwardAggregator
from mhrl.aggregators.cagrad import CAGrad
from mhrl.aggregators.config import ConFIG
from mhrl.aggregators.dwa import DWA
from mhrl.aggregators.fan_out import Aliases, FanOut, stack_rows
from mhrl.aggregators.gradnorm import GradNorm
from mhrl.aggregators.imtl_g import IMTLG
from mhrl.aggregators.loss_weighting import LossWeighting
from mhrl.aggregators.mgda import MGDA
from mhrl.aggregators.pcgrad import PCGrad
from mhrl.aggregators.recording import Record, row_gradients
from mhrl.aggregators.row_weighting import RowWeighting
from mhrl.aggregators.schedule import Curve, Schedule
from mhrl.aggregators.statistics import row_statistics, sign_agreement
from mhrl.aggregators.torchjd import TorchJD
from mhrl.aggregators.uncertainty import Uncertainty
from mhrl.aggregators.upgrad import UPGrad
from mhrl.aggregators.weighted_sum import WeightedSum

__all__ = [
    "DWA",
    "IMTLG",
    "MGDA",
    "AdaptiveWeighting",
    "Aliases",
    "AlignedMTL",
    "BackwardAggregator",
    "CAGrad",
    "ConFIG",
    "Curve",
    "FanOut",
    "GradNorm",
    "LossWeighting",
    "NegativeLossError",
    "PCGrad",
    "Record",
    "RowWeighting",
    "Schedule",
    "TorchJD",
    "UPGrad",
    "Uncertainty",
    "WeightedSum",
    "row_gradients",
    "row_statistics",
    "sign_agreement",
    "stack_rows",
]
