"""Every command in small, and what their figures rest on. conftest puts `scripts` on the path."""

import inspect
import json
import math
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace

import _bench_command
import _bench_peers
import _bench_report
import _bench_timers
import _bench_to_return
import _bench_train
import numpy as np
import pytest
import torch
from _bench_aggregators import TorchJDUPGrad, UPGrad, WeightedSum, aggregated, at_params, torchjd
from _bench_clock import ratio, take_turns
from _bench_contestant import BenchmarkError, Contestant, Peer, half_range, verify
from _bench_engines import ENGINES, eager
from _bench_heads import stacked
from _bench_mhrl import CONFIGS, Mhrl, words_of
from _bench_options import OPTIONS
from _bench_play import play, playground
from _bench_products import Pass, ddpg_products, flops, multiply, weights_of
from _bench_task import Task
from _bench_update import update_of
from _bench_watch import Reached, watch
from _bench_work import Work, loop
from benchmark import main
from hydra import compose, initialize_config_dir
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mhrl.envs import env_seeds
from mhrl.launch import run as launch

SCRIPT = Path(__file__).parents[2] / "scripts" / "benchmark.py"
STEP = ["widths=8", "batch=4", "learning_starts=8"]


@pytest.fixture(autouse=True)
def one_episode(monkeypatch):
    for module in (_bench_peers, _bench_to_return):
        monkeypatch.setattr(module, "EPISODES", 1)


def column(result, name):
    return [row[name] for row in result["rows"]]


# The commands


def test_peers(tmp_path, capsys):
    out = tmp_path / "peers.json"
    result = main(["peers", *STEP, "rounds=2", "steps=3", "check_frames=12", f"out={out}"])
    assert column(result, "row") == ["mhrl eager", "stable-baselines3", "skrl", "tianshou", "torchrl"]
    assert all(row["min"] <= row["ms CPU a step"] <= row["max"] for row in result["rows"])
    assert all(-2000 < value < 0 for value in column(result, "Pendulum-v1 return"))
    best = min(result["rows"][1:], key=lambda row: row["ms CPU a step"])
    assert best[f"x {best['row']}"] == 1
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
    assert {"torch", "stable-baselines3", "skrl", "tianshou", "torchrl"} <= result["versions"].keys()
    said = capsys.readouterr().out
    assert "widths=8" in said and result["machine"]["cpu"] in said and "│ tianshou" in said


def test_peers_with_a_delay_leaves_out_whose_ddpg_has_none():
    result = main(["peers", *STEP, "rounds=1", "steps=2", "check=false", "policy_delay=2"])
    assert column(result, "row") == ["mhrl eager", "stable-baselines3", "torchrl"]
    assert column(result, "Pendulum-v1 return") == [None] * 3
    assert result["notes"][-1].endswith("skrl, tianshou.")


def test_update():
    result = main(["update", *STEP, "rounds=1", "updates=2", "env=Pendulum-v1"])
    ours, floor = result["rows"]
    assert (ours["update"], floor["update"]) == ("mhrl eager", "products alone, fp32")
    assert floor["x products"] == 1 and ours["x products"] > 1
    assert ours["x products"] == pytest.approx(ours["ms CPU"] / floor["ms CPU"])


def test_heads(monkeypatch):
    monkeypatch.setitem(ENGINES, "compiled", eager)  # which would take some 10 s
    result = main(["heads", "heads=1,2", "widths=8", "outputs=3", "batch=4", "rounds=1", "updates=1"])
    ways = ["loop, eager", "stacked, eager", "products alone"]
    assert column(result, "update") == ways * 2 and column(result, "heads") == [1] * 3 + [2] * 3
    assert "hidden layers of a head [8], 3 outputs" in result["notes"][0]
    both = main(["heads", "heads=2", "outputs=3", "batch=4", "rounds=1", "updates=1", "engine=eager,compiled"])
    for row in both["rows"][:-1]:
        _, engine = row["update"].split(", ")
        for column_, base in (("x loop", f"loop, {engine}"), ("x eager loop", "loop, eager")):
            (over,) = (one["ms CPU"] for one in both["rows"] if one["update"] == base)
            assert row[column_] == pytest.approx(row["ms CPU"] / over)
    assert both["rows"][-1]["x eager loop"] is None


def test_aggregators(monkeypatch):
    monkeypatch.setitem(ENGINES, "compiled", eager)
    words = ["aggregators", "heads=2,3", "widths=8", "outputs=3", "batch=4", "rounds=1", "updates=1"]
    result = main([*words, "engine=eager,compiled"])
    steps = column(result, "step")
    assert steps[: len(steps) // 2] * 2 == steps
    assert {"plain, looped", "upgrad@features", "upgrad@params", "torchjd UPGrad"} <= set(steps)
    assert [row["x plain, looped"] for row in result["rows"] if row["step"] == "plain, looped"] == [1, 1]
    plain = {row["step"]: row for row in result["rows"] if row["heads"] == 3}
    for row in plain.values():
        assert row["x eager plain, looped"] == pytest.approx(row["ms CPU"] / plain["plain, looped"]["ms CPU"])
    assert plain["plain, looped, compiled"]["x plain, looped"] == 1
    assert sum("conflict signs of the two levels agree in" in note for note in result["notes"]) == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_collect(mode):
    result = main(["collect", "widths=8", "envs=2", "rounds=1", "frames=8", "env=Pendulum-v1", f"modes={mode}"])
    assert "1 rounds of 8 frames" in result["notes"][-1]
    assert column(result, "collector") == ["mhrl", "torchrl"]
    assert all(value > 0 for value in column(result, "frames/s")) and result["rows"][1]["x torchrl"] == 1


def test_profile_adds_up_to_the_whole():
    result = main(["profile", *STEP, "rounds=3", "steps=4"])
    *parts, whole = result["rows"]
    assert whole["part"] == "mhrl eager: whole" and whole["%"] == 100
    names = ["act", "env.step", "rest of collector", "replay extend", "sample", "update (engine)", "target update"]
    assert [row["part"] for row in parts] == [f"mhrl eager: {name}" for name in [*names, "bookkeeping (loop)"]]
    assert all(row["us CPU a step"] > 0 for row in parts)
    assert math.fsum(row["us CPU a step"] for row in parts) == pytest.approx(whole["us CPU a step"], rel=1e-12)
    assert math.fsum(row["%"] for row in parts) == pytest.approx(100, rel=1e-12)


def test_to_return():
    words = ["widths=8", "batch=4", "learning_starts=8", "every=8", "frames=16", "seeds=3", "target=-5000"]
    result = main(["to_return", *words])
    assert column(result, "row") == ["mhrl eager", "stable-baselines3", "skrl"]
    assert column(result, "frames") == [16] * 3 and column(result, "reached") == ["1 of 1"] * 3
    assert all(0 < row["min"] <= row["CPU s"] and row["wall s"] > 0 for row in result["rows"])


def test_targets_that_are_not_reached_have_no_figures(tmp_path, monkeypatch):
    never = Reached()
    runs = {
        "mhrl eager": [Reached(4, 5, 600), never, never],
        "stable-baselines3": [Reached(2, 3, 700), Reached(6, 7, 800), never],
        "skrl": [Reached(1, 1, 500), never, never],
    }
    caches = {}

    def watched(name, command, cache, *others):
        assert not cache.exists()  # what is there, a process of this row has left
        caches.setdefault(name, set()).add(cache)
        return runs[name].pop(0)

    monkeypatch.setattr(_bench_to_return, "watch", watched)
    out = tmp_path / "out.json"
    result = main(["to_return", "widths=8", "seeds=0,1,2", f"out={out}"])
    ours, best, last = result["rows"]
    assert column(result, "reached") == ["1 of 3", "2 of 3", "1 of 3"]
    assert (ours["CPU s"], ours["min"], ours["max"], ours["frames"]) == (None, 4, None, None)
    assert (best["CPU s"], best["first CPU s"], best["min"], best["max"], best["wall s"]) == (6, 2, 2, None, 7)
    assert [row["CPU / stable-baselines3"] for row in (ours, best, last)] == [2, 1, 0.5]
    assert json.loads(out.read_text(), parse_constant=pytest.fail)["rows"] == result["rows"]
    assert all(len(own) == 1 for own in caches.values()) and len(set.union(*caches.values())) == 3

    runs |= {name: [never] for name in runs}
    result = main(["to_return", "widths=8", "seeds=0"])
    assert column(result, "CPU / best peer") == [None] * 3 and column(result, "wall s") == [None] * 3


# The command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "commands are peers, update, heads, aggregators, collect, profile, to_return"),
        (["peer"], "unknown command 'peer'; commands are peers, update"),
        (["heads", "head=3"], "unknown option 'head=3' of heads; options are threads=1 rounds=21"),
        (["heads", "heads"], "unknown option 'heads' of heads"),
        (["heads", "rounds=0"], "rounds=0: at least 1 is expected"),
        (["heads", "heads=3,x"], "heads=x: whole numbers are expected"),
        (["heads", "heads="], "heads=: at least one value is expected"),
        (["peers", "check=no"], "check=no: true or false is expected"),
        (["update", "engine=fast"], "engine=fast: eager or compiled is expected"),
        (["heads", "out=/nowhere/x.json"], "out=/nowhere/x.json: No such file"),
        (["heads", "out=/"], "out=/: not a file"),
        (["heads", "out=/dev/null"], "out=/dev/null: not a file"),
        (["heads", f"out={__file__}/x.json"], "x.json: Not a directory"),
        (["update", "env=Nope-v0"], "env.id is 'Nope-v0'"),
        (["to_return", "env=Nope-v0"], "error: env.id is 'Nope-v0'"),
        (["to_return", "frames=1000"], "frames=1000: more than learning_starts=1000 is expected"),
        (["to_return", "frames=2000", "every=2001"], "frames=2000: at least every=2001 is expected"),
        (["to_return", "seeds=-1"], "seeds=-1: at least 0 is expected"),
        (["peers", "check_frames=10", "learning_starts=10"], "check_frames=10: more than learning_starts=10"),
        (["update", *STEP, "batch=100000000000", "env=Pendulum-v1"], "error: out of memory: lower batch, widths"),
    ],
)
def test_what_cannot_be_used_is_named(words, message):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert message in str(error.value)


def test_out_is_written_whole_at_the_end_or_not_at_all(tmp_path):
    out = tmp_path / "out.json"
    options = SimpleNamespace(out=str(out), threads=1)
    _bench_report.begin("heads", options)
    assert list(tmp_path.iterdir()) == []
    out.write_text("old")
    with pytest.raises(TypeError, match="not JSON serializable"):
        _bench_report.show("heads", options, _bench_report.Result([{"row": "a"}], [object]))
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]
    result = _bench_report.show("heads", options, _bench_report.Result([{"row": "a", "ms": math.nan}]))
    assert json.loads(out.read_text()) == result and result["rows"] == [{"row": "a", "ms": None}]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModuleNotFoundError("No module named 'skrl'", name="skrl"), "error: No module .*: pip install 'mhrl.bench.'"),
        (ModuleNotFoundError("No module named 'skrl.new'", name="skrl.new"), None),
        (ModuleNotFoundError("No module named '_bench_x'", name="_bench_x"), None),
        (ImportError("cannot import name 'x'", name="skrl"), None),
        (BenchmarkError("skrl: updates are 0"), "error: skrl: updates are 0"),
        (RuntimeError("a bug"), None),
    ],
)
def test_what_a_user_can_mend_is_said_and_a_bug_keeps_its_traceback(monkeypatch, error, expected):
    def run(options):
        raise error

    monkeypatch.setattr(_bench_command, "import_module", lambda name: SimpleNamespace(run=run))
    with pytest.raises(SystemExit if expected else type(error), match=expected):
        main(["heads"])


def test_help_names_every_command_and_option():
    shown = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True).stdout
    for command, options in OPTIONS.items():
        line = next(one for one in shown.splitlines() if one.startswith(f"  {command} ") and "=" in one)
        assert all(f" {name}=" in line for name in options)


# The floor


def test_flops_of_the_products_of_an_update_by_hand():
    # Batch 2; actor 3-4-1: 12 + 4 multiplications a row, critic 4-4-1: 16 + 4. Forward: the actor twice, the critic
    # three times. Backward: weights as forward; inputs of second layers 4, the critic's twice; the action's column 4.
    multiplications = 2 * 16 + 3 * 20 + (16 + 20) + 3 * 4 + 4
    assert flops(ddpg_products(3, 1, [4], 2)) == 2 * 2 * multiplications


class Multiplications(TorchDispatchMode):
    """Counts the operations of what torch multiplies."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::mm", "aten::addmm"):
            left, right = args[-2:]
            self.flops += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


def test_the_products_are_those_of_an_update():
    contestant = Mhrl(Task("Pendulum-v1", batch=16, widths=(8, 4), learning_starts=8))
    contestant.fill()
    contestant.close()
    update = update_of(contestant)
    with Multiplications() as counted:
        update()
    # autograd also computes the columns of the observation beside that of the action: 16 x 8 by 8 x 3.
    assert counted.flops == flops(ddpg_products(3, 1, (8, 4), 16)) + 2 * 16 * 8 * 3


def test_the_products_of_a_pass_are_those_of_autograd():
    torch.manual_seed(0)
    weights = [weight.requires_grad_() for weight in weights_of([5, 4, 3, 2])]
    one = Pass([weight.detach() for weight in weights], 6)
    x = one.values[0].clone().requires_grad_()
    y = x
    for weight in weights:
        y = F.linear(y, weight)
    y.backward(one.gradients[-1])
    weight_products, input_products = one.backward_weights(), one.backward_inputs(first=2)
    for products in (one.forward(), input_products, weight_products):
        multiply(products)
    torch.testing.assert_close(one.values[-1], y.detach())
    torch.testing.assert_close(input_products[-1][2], x.grad[:, -2:])
    for (_, _, found), weight in zip(weight_products, reversed(weights), strict=True):
        torch.testing.assert_close(found, weight.grad)


# The work


SMALL = SimpleNamespace(batch=16, outputs=3, widths=())


def moved(backward, widths=()):
    """The parameters after three steps of plain gradient descent."""
    work = Work(4, SimpleNamespace(**vars(SMALL) | {"widths": widths}))
    work.optimizer = torch.optim.SGD(work.parameters, 0.1)
    update = eager(work, backward(work))
    for _ in range(3):
        update()
    return torch.nn.utils.parameters_to_vector(work.parameters).detach()


@pytest.mark.parametrize("widths", [(), (4,)])
def test_the_loop_the_stack_and_the_weighted_sum_do_the_same_work(widths):
    right = moved(lambda work: loop, widths)
    torch.testing.assert_close(moved(lambda work: stacked, widths), right)
    torch.testing.assert_close(moved(lambda work: aggregated(WeightedSum()), widths), right)


def test_a_traced_update_is_the_eager_one(monkeypatch):
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, inputs, options: graph)  # which takes some 10 s
    found = []
    for engine in ("eager", "compiled"):
        work = Work(2, SMALL)
        update = ENGINES[engine](work, aggregated(UPGrad()))
        for _ in range(3):
            update()
        found.append(torch.nn.utils.parameters_to_vector(work.parameters).detach())
    assert not torch.equal(found[0], torch.nn.utils.parameters_to_vector(Work(2, SMALL).parameters))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_upgrad_at_the_parameters_does_what_torchjd_does():
    theirs = moved(lambda work: torchjd(TorchJDUPGrad()))
    torch.testing.assert_close(moved(lambda work: at_params(work, UPGrad)), theirs, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(theirs, moved(lambda work: loop), rtol=1e-4, atol=1e-5)


def test_mhrl_as_a_contestant_does_what_a_run_does(tmp_path):
    work = Task("Pendulum-v1", batch=16, widths=(8,), learning_starts=8, policy_delay=2)
    contestant = Mhrl(work)
    contestant.fill()
    contestant.advance(32)
    contestant.close()
    run_dir = tmp_path / "run"
    words = [*words_of(work), "total_frames=40", "eval.episodes=1", "wandb.mode=disabled", f"run_dir={run_dir}"]
    with chdir(tmp_path), initialize_config_dir(str(CONFIGS), version_base="1.3"):
        launch(compose("train", words))
    trained = torch.load(run_dir / "checkpoints" / "last.pt", weights_only=True)
    for name, module in (("network", contestant.parts.network), ("target", contestant.parts.objective.target)):
        torch.testing.assert_close(dict(module.state_dict()), trained[name], rtol=0, atol=0)


class Pretender(Peer):
    """A contestant that updates every `skip`-th time, its critic's bias never if `frozen`."""

    networks = optimizers = None
    fill = act = close = None

    name = "pretender"

    def __init__(self, skip=1, frozen=False):
        self.networks = {name: torch.nn.Linear(2, 1) for name in ("actor", "critic")}
        self.networks["critic"].bias.requires_grad_(not frozen)
        self.optimizers = {name: torch.optim.SGD(net.parameters(), 0.1) for name, net in self.networks.items()}
        self.skip = skip

    def advance(self, steps):
        for step in range(steps):
            for name, network in self.networks.items():
                if step % self.skip == 0:
                    network(torch.ones(1, 2)).sum().backward()
                    self.optimizers[name].step()


def test_who_does_not_do_the_work_is_found_out():
    verify(Pretender(), 4, 1)
    with pytest.raises(BenchmarkError, match=r"updates are {'actor': 2, 'critic': 2}, {'actor': 4, 'critic': 4}"):
        verify(Pretender(skip=2), 4, 1)
    with pytest.raises(BenchmarkError, match=r"1 of 2 parameters of its critic stayed .* `widths` are so narrow"):
        verify(Pretender(frozen=True), 4, 1)


def test_who_cannot_count_its_updates_is_no_contestant():
    assert "counted" in Contestant.__abstractmethods__ and not inspect.isabstract(Mhrl)


def test_the_half_range_is_that_of_a_symmetric_box():
    assert half_range(np.full(2, -3.0), np.full(2, 3.0)) == 3
    for low, high in (([-1, -1], [1, 2]), ([-2, -1], [1, 1]), ([-np.inf] * 2, [np.inf] * 2)):
        with pytest.raises(BenchmarkError, match="symmetric and the same in all dimensions"):
            half_range(np.array(low), np.array(high))


# The clocks


def test_turns_are_taken_in_rounds_and_ratios_round_by_round():
    now, order = [0.0], []

    def action(name, seconds):
        def act():
            order.append(name)
            now[0] += seconds.pop(0)

        return act

    actions = {"a": action("a", [2.0, 8.0, 3.0]), "b": action("b", [1.0, 2.0, 3.0])}
    times = take_turns(actions, 3, 10, lambda: now[0])
    assert order == ["a", "b"] * 3
    assert times == {"a": pytest.approx([200, 800, 300]), "b": pytest.approx([100, 200, 300])}
    assert ratio(times["a"], times["b"]) == pytest.approx(median([2, 4, 1]))


def test_a_timer_leaves_out_the_timers_inside_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_bench_timers.time, "process_time", lambda: now[0])

    class Owner:
        def inner(self):
            now[0] += 3

        def outer(self):
            now[0] += 1
            self.inner()
            self.inner()

        def items(self):
            for i in range(2):
                now[0] += 10
                yield i

    owner, timers = Owner(), _bench_timers.Timers()
    timers.wrap(owner, "inner", "inner")
    timers.wrap(owner, "outer", "outer")
    timers.wrap_iterator(owner, "items", "items")
    owner.outer()
    assert list(owner.items()) == [0, 1]
    assert timers.seconds == {"inner": 6, "outer": 1, "items": 20}
    assert timers.calls == 6  # the iterator's end, too
    timers.clear()
    owner.inner()
    assert timers.seconds == {"inner": 3, "outer": 0, "items": 0}


# The watch over a process


WRITE = "import json, time, pathlib; write = pathlib.Path('metrics.jsonl').write_text; row = json.dumps; "


def test_a_process_is_ended_at_the_first_evaluation_that_reaches_the_target(tmp_path):
    rows = [{"frames": 1, "loss/value": 3.0}, {"frames": 2, "eval/return_mean": -300}]
    rows += [{"frames": 3, "eval/return_mean": -200}, {"frames": 4, "eval/return_mean": -100}]
    code = WRITE + f"write(chr(10).join(map(row, {rows})) + chr(10)); sum(range(10**7)); time.sleep(60)"
    reached = watch("stub", [sys.executable, "-c", code], tmp_path, -200)
    assert reached.frames == 3 and 0 < reached.wall < 30
    assert watch("stub", [sys.executable, "-c", code], tmp_path, -200, after=3).frames == 4


@pytest.mark.parametrize("rest", ["", "; time.sleep(60)"])
def test_cpu_time_of_what_a_process_starts_counts(rest, tmp_path):
    burn = "import time, pathlib\nwhile time.process_time() < 0.7: pass\npathlib.Path('burnt').touch()" + rest
    code = f"import subprocess, time, os; child = subprocess.Popen(['{sys.executable}', '-c', {burn!r}])\n"
    code += "while not os.path.exists('burnt'): time.sleep(0.01)\n"
    code += ("" if rest else "child.wait()\n") + WRITE + "write(row({'frames': 1, 'eval/return_mean': 0}) + chr(10))"
    reached = watch("stub", [sys.executable, "-c", code + "; time.sleep(60)"], tmp_path, 0)
    assert 0.7 < reached.cpu < 30


def test_a_process_finds_what_those_before_it_compiled(tmp_path):
    code = WRITE + "import os; cache = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'compiled')\n"
    code += "found = cache.exists(); cache.touch()\n"
    code += "write(row({'frames': 1, 'eval/return_mean': int(found)}) + chr(10))"
    assert [watch("stub", [sys.executable, "-c", code], tmp_path, 1).frames for _ in range(2)] == [math.inf, 1]


def test_a_process_that_ends_without_reaching_it_or_fails(tmp_path):
    code = WRITE + "write(row({'frames': 1, 'eval/return_mean': -300}) + chr(10))"
    assert watch("stub", [sys.executable, "-c", code], tmp_path, -200).frames == math.inf
    with pytest.raises(SystemExit, match=r"^error: stub failed:\nno such luck$"):
        watch("stub", [sys.executable, "-c", "raise SystemExit('no such luck')"], tmp_path, -200)


# Evaluations


class Still:
    """A contestant that does nothing, and counts what it is asked for."""

    def __init__(self, task=None):
        self.asked = []

    def fill(self):
        self.asked.append("fill")

    def advance(self, steps):
        self.asked.append(steps)

    def act(self, observations):
        self.asked.append(observations.shape)
        return np.zeros((len(observations), 1), np.float32)


def test_playing_is_in_one_batch_on_the_same_episodes():
    still, envs = Still(), playground("Pendulum-v1", 3)
    whole = play(still, envs, [5, 6, 7])
    assert set(still.asked) == {(3, 3)} and len(still.asked) == 200
    assert whole == play(still, envs, [5, 6, 7]) < -200
    single = [play(still, playground("Pendulum-v1", 1), [seed]) for seed in (5, 6, 7)]
    assert whole == pytest.approx(math.fsum(single) / 3)


def test_playing_is_what_the_evaluator_of_mhrl_does():
    contestant = Mhrl(Task("Pendulum-v1", widths=(8,), seed=3), ("eval.episodes=2",))
    right = contestant.parts.evaluator.run().metrics()["eval/return_mean"]
    assert play(contestant, playground("Pendulum-v1", 2), env_seeds(3, 2, "eval")) == pytest.approx(right)
    contestant.close()


@pytest.mark.parametrize("peer", _bench_peers.PEERS)
def test_peers_act_on_a_batch_as_on_each_observation(peer):
    contestant = peer(Task("Pendulum-v1", widths=(8,), learning_starts=8))
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    actions = contestant.act(seen)
    assert actions.shape == (5, 1) and (np.abs(actions) <= 2).all() and np.ptp(actions) > 0
    np.testing.assert_allclose(actions, np.concatenate([contestant.act(row[None]) for row in seen]), atol=1e-6)
    contestant.close()


def test_a_peer_is_evaluated_at_the_frames_of_mhrl(tmp_path, monkeypatch):
    made = []
    stub = ModuleType("stub")
    stub.Still = lambda task: made.append(Still(task)) or made[0]
    monkeypatch.setitem(sys.modules, "stub", stub)
    job = {"module": "stub", "kind": "Still", "threads": 1, "every": 4, "frames": 18, "seeds": [1]}
    with chdir(tmp_path):
        _bench_train.main(json.dumps({**job, "task": {"env": "Pendulum-v1", "widths": [8], "learning_starts": 10}}))
        rows = [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()]
    assert [one for one in made[0].asked if one != (1, 3)] == ["fill", 2, 4, 2]
    words = [*words_of(Task("Pendulum-v1", 4, (8,), learning_starts=10)), "total_frames=18", "eval.every=4"]
    with chdir(tmp_path), initialize_config_dir(str(CONFIGS), version_base="1.3"):
        launch(compose("train", [*words, "eval.episodes=1", "wandb.mode=disabled", "run_dir=run"]))
    theirs = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [row["frames"] for row in rows] == [row["frames"] for row in theirs if "eval/return_mean" in row]
