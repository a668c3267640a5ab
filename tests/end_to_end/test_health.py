"""The warnings of a run: once, in its log and on its console."""


def test_a_row_that_drowns_the_other_is_said_once(train, capsys):
    run = train(
        *("+experiment=ddpg_shared_trunk", "total_frames=180", "learning_starts=40", "batch_size=16", "log.every=10"),
        *("eval.every=1000", "eval.episodes=1", "losses.value.weight=1e9"),
    )
    shares = [row["trunk/grad_share/value"] for row in run.rows if "trunk/grad_share/value" in row]
    assert len(shares) == 14 and min(shares) > 0.99
    log, screen = (run.path / "train.log").read_text(), capsys.readouterr().out
    assert (
        log.count("WARNING dominating row value: its gradient is 100.0% of what all 2 rows bring (at each of 10") == 1
    )
    assert screen.count("warning: dominating row value: ") == 1
    assert "from 50 to 140 frames). Should the others shape the trunk, too, lower losses.value.trunk_grad" in log
