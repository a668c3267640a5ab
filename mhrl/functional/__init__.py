"""Pure tensor mathematics: no modules, no state."""

from mhrl.functional.bounds import center_and_half_range, from_box, to_box
from mhrl.functional.loss import Distance, Reduction, distance, reduce
from mhrl.functional.td import td_target

__all__ = [
    "Distance",
    "Reduction",
    "center_and_half_range",
    "distance",
    "from_box",
    "reduce",
    "td_target",
    "to_box",
]
