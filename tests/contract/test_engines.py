"""Both engines, on every experiment there is: the same five updates, and each goes on from the other's checkpoint.

What is traced is run operation by operation: that inductor compiles it, other tests show.
"""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mhrl.config import head_kinds, register
from mhrl.experiment import Experiment

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = ["wandb.mode=disabled", "learning_starts=20", "batch_size=8", "utd_ratio=1", "eval.episodes=1", "log.every=3"]
TOLERANCE = 1e-5
ALL = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))
LIKE_OTHERS = ["bdq_lunarlander", "bdq_reacher_bullet", "ddpg_halfcheetah", "td3_halfcheetah", "td3_lunarlander"]
"""What they compute is what some other one computes, on another env."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, inputs, options: graph)


def trained(engine, *words):
    """The end of a run of five updates: all tensors of network, target and optimizer, and the engine."""
    register()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[*words, *SMALL, "total_frames=25", f"engine={engine}", f"run_dir={engine}"])
        experiment = Experiment(OmegaConf.to_container(cfg, resolve=True), head_kinds())
    experiment.run()
    assert experiment.parts.learner.updates == 5
    state = experiment.parts.policy_state()
    tensors = {f"{part}.{key}": value for part in ("network", "target") for key, value in state[part].items()}
    for i, held in state["optimizer"]["state"].items():
        tensors |= {f"optimizer.{i}.{key}": value for key, value in held.items()}
    return tensors, experiment.parts.learner.engine


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LIKE_OTHERS else []) for n in ALL])
def test_five_updates_are_the_same(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (right, _), (found, engine) = (trained(kind, f"+experiment={name}") for kind in ("eager", "compiled"))
    assert engine._graphs and not engine._refused
    assert engine._modes._switched is None  # to switch modes at each update takes time
    assert right.keys() == found.keys()
    for key, value in right.items():
        torch.testing.assert_close(
            found[key], value, rtol=0, atol=TOLERANCE, msg=lambda text, key=key: f"{key}: {text}"
        )
