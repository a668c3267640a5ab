"""Trunks: one file a kind."""

from mhrl.trunks.base import Key, Trunk
from mhrl.trunks.cnn import CNNTrunk
from mhrl.trunks.identity import IdentityTrunk
from mhrl.trunks.mlp import MLPTrunk

__all__ = ["CNNTrunk", "IdentityTrunk", "Key", "MLPTrunk", "Trunk"]
