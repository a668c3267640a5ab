"""Run folders by hand. The scripts find each other because Python puts a script's folder on the path; so does this."""

import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

CONFIG = {
    "name": "toy",
    "seed": 0,
    "env": {"_target_": "gymnasium.make", "id": "Toy-v1"},
    "trunk": {"_target_": "mhrl.trunks.MLPTrunk", "widths": [8]},
    "objective": {"_target_": "mhrl.objectives.ValueBased", "bins": None, "loss_reduction": "per_branch"},
    "aggregator": {"_target_": "mhrl.aggregators.WeightedSum"},
    "heads": {"arm": {"kind": "deterministic", "lr": None}, "gripper": {"kind": "branch", "lr": None}},
    "losses": {"arm": {"weight": 1.0, "trunk_grad": 1.0}, "gripper": {"weight": 1.0, "trunk_grad": 1.0}},
    "wandb": {"mode": "disabled"},
}
INFO = {"status": "finished", "aggregator": "weighted_sum", "choices": {"objective": "ddpg", "env": "toy"}}


@pytest.fixture
def write_run(tmp_path):
    """`write_run("a", rows, {"seed": 1}, aggregator="upgrad@features")`: the path of a run with such files.

    The third argument is merged over `CONFIG` (a whole `heads` or `losses` replaces it), keywords over `INFO`.
    """

    def write_run(name, rows, config=None, **info):
        path = tmp_path / name
        path.mkdir()
        kept = {
            key: value for key, value in CONFIG.items() if key not in ("heads", "losses") or key not in (config or {})
        }
        OmegaConf.save(OmegaConf.merge(kept, config or {}), path / "config.yaml")
        (path / "run.json").write_text(json.dumps(INFO | info | {"choices": INFO["choices"] | info.get("choices", {})}))
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write_run


@pytest.fixture
def write_big_run(write_run):
    """`write_big_run(17)`: a run of that many branches and 30 random log intervals, everything measured."""

    def write_big_run(count, levels=("trunk",), **info):
        names, rng = [f"joint_{i}" for i in range(count)], np.random.default_rng(count)
        rows = []
        for interval in range(30):
            row = {"frames": 1000 * (interval + 1), "updates": interval + 1, "episode/return": rng.normal()}
            row |= {"eval/return_mean": rng.normal(), "eval/return_std": 1.0}
            row |= {f"loss/{name}": rng.lognormal() for name in names}
            for level in levels:
                gradients = rng.normal(size=(count, 4)) * rng.lognormal(sigma=2, size=(count, 1))
                norms, whole = np.linalg.norm(gradients, axis=1), gradients.sum(0)
                row[f"{level}/combined_norm"] = np.linalg.norm(whole)
                for name, gradient, norm in zip(names, gradients, norms, strict=True):
                    row[f"{level}/grad_norm/{name}"] = norm
                    row[f"{level}/grad_share/{name}"] = norm / norms.sum()
                    row[f"{level}/grad_dot/{name}"] = gradient @ whole
                for i, j in combinations(range(count), 2):
                    cosine = gradients[i] @ gradients[j] / norms[i] / norms[j]
                    row[f"{level}/grad_cos/{names[i]}__{names[j]}"] = cosine
            rows.append(row)
        config = {
            "heads": {name: {"kind": "branch"} for name in names},
            "losses": {name: {"weight": 1.0, "trunk_grad": 1.0} for name in names},
        }
        return write_run(f"big_{count}", rows, config, **info)

    return write_big_run
