"""Two choices that need different features: on a trunk of one unit their losses pull against each other, provably."""

from typing import Any, TypeAlias, final

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from mhrl.envs.probe.timed import Timed, is_integer

Action: TypeAlias = dict[str, Any]


@final
class Conflict(Timed[Action]):
    """Two yes-or-no choices about a point on the circle, each about another coordinate of it.

    Observation, float32 `[2]`: `x = (cos phi, sin phi)`, `phi` uniform, drawn anew each step.

    Action, a Dict: `left` and `right`, `Discrete(2)` each, integers; let `u, v` be -1 for 0 and 1 for 1.

    Reward of a step: `pi/2 (u x_1 + scale v x_2)`. An episode has `length` steps and ends by `terminated`.

    **The optimum is `length (1 + scale)`**: `u = sign x_1` and `v = sign x_2` are best in every state, and the mean of
    `pi/2 |x_i|` is 1. Random actions earn 0.

    *What one feature can do.* Let the trunk have one unit, `f(x)`, of variance `s^2`, let each branch be affine in `f`,
    and let actions be drawn uniformly. With `y = pi/2 (x_1, scale x_2)` the branches' values should be `u y_1` and
    `v y_2`. After the best fit by `u a f` and `v b f` there remain `var(y_1) (1 - r_1^2)` and `var(y_2) (1 - r_2^2)`,
    where `r_i` is the correlation of `f` and `x_i`. As `x_1` and `x_2` are uncorrelated, `r_1^2 + r_2^2 <= 1` (Bessel):
    no unit serves both, and where it is used up, what one branch gains the other loses.

    *So the rows conflict.* With both branches at their best fit, the rows at the feature are in each sample
    `a (a f - y_1) - a u v y_2` and `b (b f - y_2) - b u v y_1` (`f` centred, up to one factor). Residuals are
    uncorrelated with `f`, `u v` is of mean 0, and `y_1`, `y_2` are uncorrelated: the rows' expected inner product is

        a b (a b s^2 - 2 a b s^2) = -(a b)^2 s^2,

    negative at every `f` that is of any use to both. Let `f = <w, x>` with `|w| = 1`, so that `a b` is
    `(pi/2)^2 scale w_1 w_2`. Then the cosine of the rows at the feature is

        -scale |w_1 w_2| / sqrt((w_2^2 + scale^2) (1 + scale^2 w_1^2)).

    At the parameters `w` the noise `u v` averages out, and the expected gradients are `-g` and `scale^2 g`: exactly
    opposite, cosine -1, at every `w`. Every `w` is Pareto-stationary, and the sum of the losses has its minimum where
    the louder branch has the whole feature.

    *What that earns.* Such branches choose by the signs of `w_1 f` and `w_2 f`. A step is worth `|w_1| + scale |w_2|`:
    `scale` where the sum ends (for `scale > 1`), 2/pi (1 + scale) on average over all `w`, at most
    `sqrt(1 + scale^2)`, and `1 + scale` with two units.

    Args:
        length: Steps in an episode.
        scale: What `right` counts; `left` counts 1.
    """

    def __init__(self, length: int = 1, scale: float = 1.25) -> None:
        if not 0 < scale < np.inf:
            raise ValueError(f"scale is {scale}: a positive number is expected")
        actions = Dict({"left": Discrete(2), "right": Discrete(2)})
        super().__init__(length, "terminated", Box(-1.0, 1.0, (2,), np.float32), actions)
        self.scale = scale
        self.phi = 0.0

    def _takes(self, action: Action) -> bool:
        return self.action_space.contains(action) and all(is_integer(choice) for choice in action.values())

    def _observe(self) -> np.ndarray:
        self.phi = float(self.np_random.uniform(-np.pi, np.pi))
        return np.array([np.cos(self.phi), np.sin(self.phi)], np.float32)

    def _reward(self, action: Action) -> float:
        u, v = 2 * int(action["left"]) - 1, 2 * int(action["right"]) - 1
        return float(np.pi / 2 * (u * np.cos(self.phi) + self.scale * v * np.sin(self.phi)))
