"""`peers`: env steps per CPU-second of DDPG, library beside library."""

from statistics import median
from types import SimpleNamespace

from _bench_clock import clock_of, in_turns, name_of, ratio, take_turns
from _bench_contestant import Contestant, verify
from _bench_mhrl import Mhrl, variants
from _bench_play import EPISODES, play, playground
from _bench_report import Result, Row, spread
from _bench_skrl import Skrl
from _bench_stable_baselines3 import StableBaselines3
from _bench_task import Task
from _bench_tianshou import Tianshou
from _bench_torchrl import TorchRL

from mhrl.envs import env_seeds

PEERS = (StableBaselines3, Skrl, Tianshou, TorchRL)


def run(options: SimpleNamespace) -> Result:
    """Measure every contestant, and let each learn."""
    task = Task.of(options)
    entrants = contestants(task, options)
    for contestant in entrants:  # what compiles does so here
        contestant.fill()
        verify(contestant, options.policy_delay * 50, options.policy_delay)
    actions = {one.name: lambda one=one: one.advance(options.steps) for one in entrants}
    times = take_turns(actions, options.rounds, options.steps, clock_of(options.threads))
    for contestant in entrants:
        contestant.close()
    peers = [one.name for one in entrants if not isinstance(one, Mhrl)]
    best = min(peers, key=lambda name: median(times[name]))
    learnt = returns(options) if options.check else {}
    unit = f"ms {name_of(options.threads)} a step"
    rows: list[Row] = [
        {
            "row": name,
            **spread(unit, found),
            "steps/s": 1e3 / median(found),
            f"x {best}": ratio(times[best], found),
            "Pendulum-v1 return": learnt.get(name),
        }
        for name, found in times.items()
    ]
    return Result(rows, notes(options, task, best))


def contestants(task: Task, options: SimpleNamespace) -> list[Contestant]:
    """Every row: mhrl as often as `options` ask for, and the peers that can do the work."""
    ours = [Mhrl(task, words, f"mhrl {name}") for name, words in variants(options).items()]
    return [*ours, *(peer(task) for peer in PEERS if peer.delays or task.policy_delay == 1)]


def returns(options: SimpleNamespace) -> dict[str, float]:
    """Mean greedy return on Pendulum-v1 after a short training, by row."""
    task, found = Task.of(options, env="Pendulum-v1"), {}
    envs, seeds = playground(task.env, EPISODES), env_seeds(task.seed, EPISODES, "eval")
    for contestant in contestants(task, options):
        contestant.fill()
        contestant.advance(options.check_frames - task.learning_starts)
        found[contestant.name] = play(contestant, envs, seeds)
        contestant.close()
    envs.close()
    return found


def notes(options: SimpleNamespace, task: Task, best: str) -> list[str]:
    """What the figures mean."""
    said = [
        f"DDPG, one critic update an env step, an actor update at every {options.policy_delay}. of them; one env, one "
        f"frame a rollout, replay of {task.capacity:,}, Adam {task.lr:g}, Gaussian noise of {task.std:g} half-ranges.",
        f"x {best}: the time of the best peer over the row's. {in_turns(options.rounds, options.steps, 'env steps')}",
        "In each row all parameters of actor and critic were seen to move, and updates to be as many as env steps call "
        "for: for peers the steps of their optimizers, for mhrl its learner's own counter.",
        "Adam is fused in mhrl and in the loop written here for torchrl; the others have their library's default, "
        "which is not. Initial weights are each library's own; mhrl draws last layers from +-3e-3.",
        "skrl's trainer resets its env when it is called, so an episode of skrl ends with each round.",
    ]
    if options.check:
        said.append(
            f"Return: {EPISODES} greedy episodes after {options.check_frames:,} frames, {task.learning_starts:,} of "
            "them at random; one seed, which shows that a row learns and not how well."
        )
    if options.policy_delay > 1:
        said.append("Left out, as their DDPG knows no delay: " + ", ".join(p.name for p in PEERS if not p.delays) + ".")
    return said
