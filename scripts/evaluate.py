"""Play greedy episodes of a trained run: `python scripts/evaluate.py run=<run dir or checkpoint> [episodes=10]`.

`mhrl-evaluate` is the same; `--help` says what the options are.
"""

from mhrl.cli import evaluate

if __name__ == "__main__":
    evaluate()
