"""Action masks from the env to the update: no illegal action, the right mask beside each observation, empty masks."""

import sys

import numpy as np
import pytest
import torch

from mhrl import cli
from mhrl.envs import EnvError, env_seeds
from mhrl.replay import saved_rows

NARROW = ("trunk.widths=[16]", "heads=null", "batch_size=16", "eval.episodes=3", "num_envs=3", "utd_ratio=0.1")
EXPLORE = ("exploration.epsilon=0.3", "exploration.std=0.5")
BASE = ("+experiment=hybrid_q", "env._target_=toy_envs.Masked", "~env.length", *NARROW, *EXPLORE, "learning_starts=600")


def stored(run):
    """Every row of a run's replay, `{key: [T, N, ...]}`; keys of nested rows are joined by dots."""

    def flat(node, where=""):
        for key, value in node.items():
            yield from flat(value, f"{where}{key}.") if isinstance(value, dict) else [(f"{where}{key}", value)]

    return dict(flat(saved_rows(run.checkpoint()["replay"]["rows"]["rows"]).to_dict()))


def masks_of(rows, where=""):
    """The masks `[T, N, 5 or 8]`, leaf after leaf."""
    return torch.cat([value for name, value in rows.items() if name.startswith(f"{where}action_mask")], -1)


def chosen(rows):
    """The index of what each branch chose, `[T, N, 2 or 3]`, and how many values each has."""
    if "action" in rows:
        return rows["action"].long(), (2, 3)
    first = torch.tensor([-1, 0, -1])
    return torch.cat([rows["action.a"].unsqueeze(-1), rows["action.b"]], -1).long() - first, (3, 2, 3)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("+env.parts=true", "env.vectorization_mode=async", "total_frames=1_200"),
        ("+env.parts=true", "objective.n_steps=3"),
        ("+env.key=true", "++env.action_mask=mask", "objective.bins=5", "objective.dueling=mean"),
        ("+env.parts=true", "+env.key=true", "++env.action_mask=mask", "objective.bins=3", "objective.twin=true"),
    ],
    ids=" ".join,
)
def test_b06_no_illegal_action_and_the_right_masks_in_replay(train, overrides):
    run = train(*BASE, "total_frames=3_000", *overrides)  # the env raises
    assert run.info["status"] == "finished" and "eval/return_mean" in run.rows[-1]
    rows = stored(run)
    seen = next(value for name, value in rows.items() if name.startswith("observation"))
    following = next(value for name, value in rows.items() if name.startswith("next.observation"))
    masks, next_masks = masks_of(rows), masks_of(rows, "next.")
    assert masks.dtype == torch.bool and masks.float().equal(seen) and next_masks.float().equal(following)
    index, sizes = chosen(rows)
    for choice, allowed in zip(index.unbind(-1), masks.split(sizes, -1), strict=True):
        assert allowed.gather(-1, choice.unsqueeze(-1)).all()
    assert len(masks) == int(run.info["frames"]) // 3 - (2 if "objective.n_steps=3" in overrides else 0)
    differ = (masks[:, 0] != masks[:, 1]).any(-1) & (masks[:, 1] != masks[:, 2]).any(-1)
    assert differ.float().mean() > 0.5
    assert run.info["updates"] >= 60


def test_b06_without_masks_the_env_does_raise(train):
    with pytest.raises(EnvError, match="is illegal"):
        train(*BASE, "total_frames=600", "++env.action_mask=none")


@pytest.mark.parametrize(
    ("parts", "starts", "head"),
    [(False, 600, "action_1"), (True, 600, "b_1"), (False, 9, "action_1"), (True, 9, "b_1")],
)
def test_b06_an_empty_mask_in_mid_episode_ends_the_run(monkeypatch, capsys, tmp_path, parts, starts, head):
    """In the warm-up, and when the policy acts; named are the env, here the second of three, and the head."""
    empty = ("+env.empty_at=5", f"+env.empty_seed={env_seeds(0, 3, 'train')[1]}", f"+env.parts={parts}")
    words = (*BASE[:-1], f"learning_starts={starts}", *empty, "wandb.mode=disabled", f"run_dir={tmp_path / 'run'}")
    monkeypatch.setattr(sys, "argv", ["mhrl-train", *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as end:
        cli.train()
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert f"env 1: action_mask allows nothing for head '{head}'" in said and "Traceback" not in said
    assert '"status": "failed"' in (tmp_path / "run" / "run.json").read_text()


def test_b06_an_empty_mask_in_an_evaluation_ends_the_run(train):
    from mhrl.envs import EmptyMaskError

    seed = env_seeds(0, 3, "eval")[2]
    with pytest.raises(EmptyMaskError, match=r"env 2: action_mask allows nothing for head 'action_1'"):
        train(*BASE, "total_frames=900", "eval.every=700", "+env.empty_at=5", f"+env.empty_seed={seed}")


@pytest.mark.parametrize(
    "overrides", [(), ("+env.parts=true", "objective.n_steps=3", "objective.double=false")], ids=str
)
def test_b06_an_empty_mask_of_a_terminal_state_does_no_harm(train, overrides):
    run = train(*BASE, "total_frames=1_500", "utd_ratio=0.3", "+env.empty_at=10", *overrides)
    rows = stored(run)
    ends = rows["next.terminated"].squeeze(-1)
    assert ends.sum() >= 140
    last = masks_of(rows, "next.")[..., -3:]
    assert not last[ends].any() and last[~ends].any(-1).all()
    assert all(np.isfinite(value) for row in run.rows for value in row.values())
    assert all(torch.isfinite(value).all() for value in run.checkpoint()["network"].values())


def test_b06_masks_of_a_stock_env_are_found(train):
    """Taxi says in its infos which of its six actions change anything."""
    words = ("trunk=mlp", "trunk.widths=[16]", "env.id=Taxi-v4", "objective=dqn", "exploration=epsilon_greedy")
    run = train(*words, *NARROW[2:], "total_frames=600", "learning_starts=200")
    assert run.checkpoint()["config"]["env"]["action_mask"] == "info"
    rows = stored(run)
    assert rows["action_mask"].shape == (200, 3, 6) and not rows["action_mask"].all()
    assert rows["action_mask"].gather(-1, rows["action"].unsqueeze(-1)).all()
