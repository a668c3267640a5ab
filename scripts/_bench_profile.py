"""`profile`: where the CPU time of an env step goes; the rows add up to the whole."""

import time
from types import SimpleNamespace

from _bench_mhrl import Mhrl, variants
from _bench_report import Result
from _bench_task import Task
from _bench_timers import Timers, cost

LEARNING = ("update (engine)", "target update")
LAST = "bookkeeping (loop)"
WHOLE = "whole"


def run(options: SimpleNamespace) -> Result:
    """Measure every engine and precision."""
    task, result = Task.of(options), Result([])
    for name, words in variants(options).items():
        contestant = Mhrl(task, words, name)
        contestant.fill()
        contestant.advance(options.policy_delay * 50)  # what compiles does so here
        timers = timed(contestant)
        rounds = [one_round(contestant, timers, options.steps) for _ in range(options.rounds)]
        contestant.close()
        found = sorted(rounds, key=lambda one: one[WHOLE])[len(rounds) // 2]
        result.rows += [
            {"part": f"mhrl {name}: {part}", "us CPU a step": us, "%": us / found[WHOLE] * 100}
            for part, us in found.items()
        ]
        rest = 1 - sum(found[part] for part in LEARNING) / found[WHOLE]
        wholes, calls = [one[WHOLE] for one in rounds], timers.calls / options.steps
        result.notes += [
            f"mhrl {name}: {rest:.1%} of a step is neither engine nor target update; the whole of a round is "
            f"{min(wholes):,.0f} to {max(wholes):,.0f} us.",
            f"Timers: {calls:.0f} calls a step, {1e6 * calls * cost() / found[WHOLE]:.2%} of its time, in the rows.",
        ]
    result.notes.append(
        f"The median one of {options.rounds} rounds of {options.steps} steps. A row is without the rows that it calls; "
        f"'{LAST}' is the whole less the others."
    )
    return result


def timed(contestant: Mhrl) -> Timers:
    """Timers around every part of the loop."""
    timers, parts = Timers(), contestant.parts
    timers.wrap(parts.policy, "act", "act")
    timers.wrap(parts.collector.env, "step", "env.step")
    timers.wrap(contestant, "next_rollout", "rest of collector")
    timers.wrap(parts.replay, "extend", "replay extend")
    timers.wrap_iterator(parts.replay, "batches", "sample")
    timers.wrap(parts.learner, "update", LEARNING[0])
    timers.wrap(parts.objective, "update_target", LEARNING[1])
    return timers


def one_round(contestant: Mhrl, timers: Timers, steps: int) -> dict[str, float]:
    """Microseconds a step by part; the last two are what is left, and the whole."""
    timers.clear()
    start = time.process_time()
    contestant.advance(steps)
    whole = (time.process_time() - start) / steps * 1e6
    found = {name: seconds / steps * 1e6 for name, seconds in timers.seconds.items()}
    return {**found, LAST: whole - sum(found.values()), WHOLE: whole}
