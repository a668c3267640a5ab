"""Pure tensor mathematics: no modules, no state."""

from mhrl.functional.bounds import center_and_half_range, from_box, to_box
from mhrl.functional.cut import cut_episodes
from mhrl.functional.loss import Distance, Reduction, distance, reduce
from mhrl.functional.n_step import n_step
from mhrl.functional.td import td_target

__all__ = [
    "Distance",
    "Reduction",
    "center_and_half_range",
    "cut_episodes",
    "distance",
    "from_box",
    "n_step",
    "reduce",
    "td_target",
    "to_box",
]
