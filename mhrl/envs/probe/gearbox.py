"""A drive in three kinds of action at once: the best of each is known, and none may be ignored."""

from typing import Any, TypeAlias, final

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from mhrl.envs.probe.timed import Timed, is_integer

Action: TypeAlias = dict[str, Any]

CENTRE = {1: 2.0, 2: 0.0, 3: 1.0}
"""The best throttle of each gear without wind."""


@final
class Gearbox(Timed[Action]):
    """Choose gear, throttle and lights for the stretch of road ahead; every stretch is drawn anew.

    Observation, float32 `[5]`: `road` (-1 uphill, 0 level, 1 downhill, equally likely), `wind` (uniform in [-1, 1]),
    `dark` and `fog` (0 or 1, each a fair coin), all independent; and the share of the episode that is left, 1 to 0.

    Action, a Dict: `gear`, `Discrete(3, start=1)`, an integer; `lights`, `MultiBinary(2)`, int8 `[2]`; `throttle`,
    `Box(-2, 4, (1,))`, float32. Other types are refused, although the spaces would take some of them.

    Reward of a step, with `best(gear, wind) = CENTRE[gear] + wind` and `CENTRE` = 2, 0, 1 for gears 1, 2, 3:

        1 - (throttle - best(gear, wind))**2 / 4 - 1.25 [gear != 2 + road] - 0.5 [lights[0] != dark]
          - 0.5 [lights[1] != fog]

    An episode has `length` steps and ends by `terminated`.

    **The optimum is `length`**: each term that is taken off is at least 0, and the policy `gear = 2 + road`,
    `throttle = best(gear, wind)` (in [-1, 3], inside its box), `lights = (dark, fog)` takes off none; float32 throttles
    lose less than 1e-13 of it. With discount `gamma` the best value with `n` steps left is
    `(1 - gamma**n) / (1 - gamma)`, since no action changes what comes.

    What a step earns on average at most, if a policy ignores part of the structure and does all else well:

    - the throttle does not follow the gear: 1 - 2/3 / 4 = 0.8333, as the variance of (2, 0, 1) is 2/3;
    - the throttle does not follow the wind: 1 - 1/3 / 4 = 0.9167, as the variance of the wind is 1/3;
    - the gear does not follow the road: 1 - 1.25 * 2/3 = 0.1667, since it is right one time in three;
    - one light does not follow what it is for: 0.75; both: 0.5.

    So 95 % of the optimum takes all of it. Uniformly random actions earn 1 - (3 + 2/3 + 1/3) / 4 - 1.25 * 2/3 - 0.5,
    which is -4/3, a step.

    The reward is a parabola in the throttle for each gear. A wrong gear costs more than the right gear loses at the
    wrong one's best throttle (1.25 > 2**2 / 4), so that the reward of the best gear at each throttle has one local
    maximum in the throttle only: climbing it from anywhere leads to the optimum.

    Args:
        length: Steps in an episode.
    """

    def __init__(self, length: int = 4) -> None:
        low, high = np.array([-1, -1, 0, 0, 0], np.float32), np.ones(5, np.float32)
        gear, lights, throttle = Discrete(3, start=1), MultiBinary(2), Box(-2.0, 4.0, (1,), np.float32)
        actions = Dict({"gear": gear, "lights": lights, "throttle": throttle})
        super().__init__(length, "terminated", Box(low, high, dtype=np.float32), actions)
        self.road, self.wind, self.dark, self.fog = 0, 0.0, 0, 0

    def _takes(self, action: Action) -> bool:
        if not self.action_space.contains(action):
            return False
        lights = action["lights"]
        return is_integer(action["gear"]) and isinstance(lights, np.ndarray) and lights.dtype == np.int8

    def _observe(self) -> np.ndarray:
        self.road = int(self.np_random.integers(-1, 2))
        self.wind = float(np.float32(self.np_random.uniform(-1.0, 1.0)))  # as it is observed
        self.dark, self.fog = map(int, self.np_random.integers(0, 2, 2))
        return np.array([self.road, self.wind, self.dark, self.fog, 1 - self.t / self.length], np.float32)

    def _reward(self, action: Action) -> float:
        gear, (headlight, fog_light) = int(action["gear"]), action["lights"]
        miss = float(action["throttle"][0]) - (CENTRE[gear] + self.wind)
        wrong_lights = int(headlight != self.dark) + int(fog_light != self.fog)
        return 1.0 - miss**2 / 4 - 1.25 * (gear != 2 + self.road) - 0.5 * wrong_lights
