"""Small envs whose optimum is known, for tests and first experiments.

All refuse an action that their space does not contain, so that they also check the caller; their state is in plain
attributes, and all that is random comes from `np_random`.
"""

from mhrl.envs.probe.bandit import Bandit
from mhrl.envs.probe.conflict import Conflict
from mhrl.envs.probe.const_obs import ConstObs
from mhrl.envs.probe.counter import Counter
from mhrl.envs.probe.gearbox import Gearbox
from mhrl.envs.probe.platform import Platform

__all__ = ["Bandit", "Conflict", "ConstObs", "Counter", "Gearbox", "Platform"]
