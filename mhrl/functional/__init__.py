"""Pure tensor mathematics: no modules, no state."""

from mhrl.functional.action_value import (
    BranchReduction,
    allowed,
    best_index,
    best_value,
    chosen_value,
    joint_best_value,
    reduce_branches,
)
from mhrl.functional.bounds import center_and_half_range, from_box, to_box
from mhrl.functional.cut import cut_episodes
from mhrl.functional.entries import tensordict_of
from mhrl.functional.inner_products import inner_products
from mhrl.functional.least_squares import nonnegative_least_squares
from mhrl.functional.loss import Distance, Reduction, distance, reduce
from mhrl.functional.n_step import n_step
from mhrl.functional.td import td_target

__all__ = [
    "BranchReduction",
    "Distance",
    "Reduction",
    "allowed",
    "best_index",
    "best_value",
    "center_and_half_range",
    "chosen_value",
    "cut_episodes",
    "distance",
    "from_box",
    "inner_products",
    "joint_best_value",
    "n_step",
    "nonnegative_least_squares",
    "reduce",
    "reduce_branches",
    "td_target",
    "tensordict_of",
    "to_box",
]
