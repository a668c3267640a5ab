"""Play greedy episodes of a trained run: `python scripts/evaluate.py run=<run dir or checkpoint> [episodes=10]`.

A run folder means its `checkpoints/last.pt`. Prints `eval/return_mean` and `eval/return_std`. With the run's own number
of episodes and seed the figures repeat its last evaluation exactly. `seed=` draws other episodes, `trust_config=true`
allows classes from outside mhrl and its libraries.
"""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

OPTIONS = ("run", "episodes", "seed", "trust_config")


def main(arguments: list[str]) -> None:
    """Evaluate what `arguments` name."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    unknown = [name for name in options if name not in OPTIONS]
    if unknown or "run" not in options:
        wrong = f"unknown option {unknown[0]}" if unknown else "run= is missing"
        raise SystemExit(f"{wrong}; options are {', '.join(f'{name}=' for name in OPTIONS)}\n\n{__doc__}")
    numbers = {name: text for name, text in options.items() if name in ("episodes", "seed")}
    for name, text in numbers.items():
        if not text.isdecimal() or (name == "episodes" and int(text) < 1):
            raise SystemExit(f"{name}={text}: a whole number is expected")
    from mhrl.loading import evaluate_run

    try:
        evaluation = evaluate_run(
            options["run"],
            trust_config=options.get("trust_config", "false").lower() == "true",
            **{name: int(text) for name, text in numbers.items()},
        )
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    for name, value in evaluation.metrics().items():
        print(f"{name} {value:.6g}")


if __name__ == "__main__":
    main(sys.argv[1:])
