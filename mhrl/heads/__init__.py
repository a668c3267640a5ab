"""Heads: one file a kind."""

from mhrl.heads.base import ActionHead, CriticHead, Head
from mhrl.heads.critic import QHead
from mhrl.heads.deterministic import DeterministicHead

__all__ = ["ActionHead", "CriticHead", "DeterministicHead", "Head", "QHead"]
