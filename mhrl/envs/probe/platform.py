"""The Platform domain: a discrete type of action, each with a real parameter of its own."""

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from mhrl.envs.probe.timed import is_integer

Action: TypeAlias = dict[str, Any]

RUN, HOP, LEAP = 0, 1, 2
TICK = 0.01
"""Seconds between two looks at what happens."""
GOAL = 1000.0
ENDS = ((0.0, 250.0), (450.0, 700.0), (900.0, GOAL))
"""Left and right end of each platform."""
ENEMY_SPEED, ENEMY_HEIGHT, REACH = 15.0, 30.0, 20.0
MAX_STEPS = 200


@dataclass(frozen=True)
class Move:
    """A type of action.

    Args:
        name: the part of the action that holds its parameter.
        limit: the largest parameter.
        seconds: how long it lasts.
        height: of its highest point; 0 on the ground.
    """

    name: str
    limit: float
    seconds: float
    height: float


MOVES = (Move("run", 30.0, 1.0, 0.0), Move("hop", 720.0, 0.25, 60.0), Move("leap", 430.0, 0.6, 20.0))


@final
class Platform(gymnasium.Env[np.ndarray, Action]):
    """Run, hop and leap over three platforms to the goal, past an enemy on each of the first two.

    After the Platform domain of Masson, Ranchod and Konidaris, Reinforcement Learning with Parameterized Actions
    (AAAI 2016), written from its published descriptions. Lengths are in units, times in seconds, speeds in units a
    second.

    World: platforms cover [0, 250], [450, 700] and [900, 1000], all at height 0, with gaps of 200 between them; the
    goal is at 1000. The agent is a point at `x`, standing between actions. It starts at 0 with `speed` 0. Platforms 1
    and 2 have an enemy each, which walks between the platform's ends at speed 15 and turns at them; at reset it is
    uniform in the right half of its platform and walks left or right with equal chance.

    Action, a Dict: `type`, `Discrete(3)`; `run`, `Box(0, 30, (1,))`; `hop`, `Box(0, 720, (1,))`; `leap`,
    `Box(0, 430, (1,))`, float32. Only the parameter `p` of the chosen type counts. `s` seconds into

    - a run (type 0, 1 s): the agent has gone `speed s + (p - speed) s**2 / 2`; its speed is `p` afterwards;
    - a hop (type 1, 0.25 s, at most 180 units): it has gone `p s` and is `240 u (1 - u)` high, `u = s / 0.25`;
    - a leap (type 2, 0.6 s, at most 258 units): it has gone `p s` and is `80 u (1 - u)` high, `u = s / 0.6`.

    The speed is 0 after a hop or a leap. So a hop gets over an enemy, but over no gap; a leap gets over a gap, but over
    no enemy, as it stays below an enemy's height of 30.

    Step: while the action lasts, the enemy of the platform where it began walks on, and the other stands still. Every
    0.01 s, in this order, and the first that is true ends the action there:

    1. the agent is within 20 of that enemy and less than 30 high: touched, the episode ends;
    2. in a run, the agent is beyond its platform's right end: it falls there (on platform 3, it has reached the goal).

    A hop or a leap that ends at 1000 or beyond has reached the goal, one that ends over a gap falls. Touch, fall and
    goal are `terminated`. Step 200 is `truncated` if the episode has not ended.

    Reward: the distance gained, to the place where the action ended (1000 at most), over 1000. It adds up to the
    place reached over 1000, so that **the optimum is 1**, which every episode can reach: wait (`run` 0) until the enemy
    is 60 to 110 units away, hop 180 over it, run to within 258 of the next platform, leap; the same again; run or
    hop to the goal.

    Observation, float32 `[8]` in [-1, 1]: `x`; speed / 30; the enemy's place and its speed / 15, with its sign; the
    left end of the agent's platform; its width / 250; the gap behind it / 200; the next platform's width / 250. Places
    are `2 place / 1000 - 1`. On platform 3 there is no enemy (place 1, speed 0), gap or next platform (0 and 0). While
    in the air or fallen, the platform is the one where the action began.

    How it may differ from the original and from its port gym-platform: the kinds of action and the ranges of their
    parameters, the four variables of the state (the first four observed), the ends, the reward and the limit of 200
    steps are as published. Widths, heights, speeds and durations, what a parameter does to the motion, and when and
    from where enemies walk are this file's own. gym-platform observes a ninth number, the difference in height, which
    would be 0 here. So returns compare with published ones (0.964 P-DQN, 0.987 MP-DQN, as Bester, James and Konidaris,
    2019, report) in kind, not in the digit. Uniformly random actions earn about 0.19.
    """

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (8,), np.float32)
        parameters = {move.name: Box(0.0, move.limit, (1,), np.float32) for move in MOVES}
        self.action_space = Dict({"type": Discrete(len(MOVES)), **parameters})
        self.x, self.speed, self.steps, self.platform = 0.0, 0.0, 0, 0
        self.enemies, self.walks = [0.0, 0.0], [ENEMY_SPEED, ENEMY_SPEED]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the agent at 0 and the enemies somewhere on the right halves of their platforms."""
        super().reset(seed=seed)
        self.x, self.speed, self.steps, self.platform = 0.0, 0.0, 0, 0
        self.enemies = [float(self.np_random.uniform((left + right) / 2, right)) for left, right in ENDS[:2]]
        self.walks = [ENEMY_SPEED * float(self.np_random.choice((-1.0, 1.0))) for _ in range(2)]
        return self._observe(), {}

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one action to its end.

        Raises:
            ValueError: If the action space does not contain `action`, or its type is no integer.
        """
        if not (self.action_space.contains(action) and is_integer(action["type"])):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        kind, start = int(action["type"]), self.x
        over = self._move(kind, float(action[MOVES[kind].name][0]))
        self.x = min(self.x, GOAL)
        self.steps += 1
        truncated = not over and self.steps >= MAX_STEPS
        return self._observe(), (self.x - start) / GOAL, over, truncated, {}

    def _move(self, kind: int, parameter: float) -> bool:
        """Move the agent and the enemy; return whether that ended the episode."""
        move, (_, right) = MOVES[kind], ENDS[self.platform]
        s = TICK * np.arange(1, round(move.seconds / TICK) + 1)
        touched, beyond = np.zeros((2, len(s)), bool)
        x: np.ndarray = self.x + parameter * s
        if kind == RUN:
            x = self.x + self.speed * s + (parameter - self.speed) * s**2 / 2
            beyond = x >= right if right == GOAL else x > right
        if self.platform < len(self.enemies):
            enemy, walk = self._walk(s)
            height = 4 * move.height * s / move.seconds * (1 - s / move.seconds)
            touched = (abs(x - enemy) <= REACH) & (height < ENEMY_HEIGHT)
        ended = np.flatnonzero(touched | beyond)
        last = int(ended[0]) if ended.size else len(s) - 1
        if self.platform < len(self.enemies):
            self.enemies[self.platform], self.walks[self.platform] = float(enemy[last]), float(walk[last])
        self.x = float(x[last])
        self.speed = parameter if kind == RUN else 0.0
        return bool(ended.size) or (kind != RUN and not self._land())

    def _walk(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The enemy's place and speed, `[ticks]` each: unfolded, it walks on without turning."""
        (left, right), walk = ENDS[self.platform], self.walks[self.platform]
        width, gone = right - left, self.enemies[self.platform] - left
        unfolded = ((gone if walk > 0 else -gone) + ENEMY_SPEED * s) % (2 * width)
        returns = unfolded > width
        place = left + np.where(returns, 2 * width - unfolded, unfolded)
        return place, np.where(returns, -ENEMY_SPEED, ENEMY_SPEED)

    def _land(self) -> bool:
        """Come to stand on the platform below; return whether there is one and the goal is not reached."""
        for platform, (left, right) in enumerate(ENDS):
            if left <= self.x <= right and self.x < GOAL:
                self.platform = platform
                return True
        return False

    def _observe(self) -> np.ndarray:
        left, right = ENDS[self.platform]
        has_enemy = self.platform < len(self.enemies)
        enemy, walk = (self.enemies[self.platform], self.walks[self.platform]) if has_enemy else (GOAL, 0.0)
        gap, width = 0.0, 0.0
        if self.platform + 1 < len(ENDS):
            next_left, next_right = ENDS[self.platform + 1]
            gap, width = next_left - right, next_right - next_left
        places = [2 * place / GOAL - 1 for place in (self.x, enemy, left)]
        return np.array(
            [
                places[0],
                self.speed / MOVES[RUN].limit,
                places[1],
                walk / ENEMY_SPEED,
                places[2],
                (right - left) / 250,
                gap / 200,
                width / 250,
            ],
            np.float32,
        )
