import pytest
import torch

WORDS = ["+experiment=ddpg_shared_trunk", "aggregator=upgrad", "learning_starts=50", "batch_size=8", "log.every=20"]
WORDS += ["eval.episodes=1", "trunk.widths=[8]", "heads.actor.widths=[8]", "heads.value.widths=[8]"]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """What is traced is run operation by operation, at once."""
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, inputs, options: graph)


@pytest.mark.parametrize(("first", "second"), [("eager", "compiled"), ("compiled", "eager"), ("compiled", "compiled")])
def test_a_run_goes_on_with_either_engine(train, first, second):
    whole = train(*WORDS, "total_frames=80", f"engine={first}")
    cut = train(*WORDS, "total_frames=65", f"engine={first}")
    train(f"resume={cut.path}", "total_frames=80", f"engine={second}")
    left, right = whole.leaves(), cut.leaves()
    assert left.keys() == right.keys()
    if first == second:
        assert whole.differences(cut) == []
    for key, value in left.items():
        if torch.is_tensor(value) and value.is_floating_point():
            torch.testing.assert_close(
                right[key], value, rtol=1e-4, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
            )


def test_what_cannot_be_compiled_is_said_in_the_runs_log(train):
    run = train(
        *WORDS,
        "total_frames=60",
        "engine=compiled",
        "optimizer._target_=torch.optim.SGD",
        "~optimizer.betas",
        "~optimizer.eps",
        "optimizer.lr=1e-3",
    )
    log = (run.path / "train.log").read_text()
    assert log.count("engine=compiled is not possible here, the eager engine goes on: the optimizer is SGD") == 1
