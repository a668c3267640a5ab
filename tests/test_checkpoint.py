import os
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from mhrl import checkpoint as checkpoint_module
from mhrl.aggregators import DWA, WeightedSum
from mhrl.checkpoint import (
    CheckpointError,
    TornCheckpointError,
    load_checkpoint,
    load_module,
    load_optimizer,
    save_checkpoint,
    targets,
)
from mhrl.engine import EagerEngine
from mhrl.exploration import ActionNoise, Gaussian
from mhrl.objectives import ValueBased
from mhrl.replay import UniformReplay

CONFIG = {"trunk": {"_target_": "mhrl.trunks.MLPTrunk", "widths": [5]}, "heads": {"arm": {"lr": None}}, "seed": 0}


def state_of(make_network, make_batch, seed=0):
    """Every stateful part of a run after two updates."""
    network = make_network(seed=seed)
    objective = ValueBased(network, WeightedSum())
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    engine, batch = EagerEngine(objective, objective.aggregator, optimizer), make_batch(network)
    for updates in (1, 2):
        engine.step(batch, objective.due(updates), statistics=True)
        objective.update_target(updates)
    replay = UniformReplay(12, 4, 2, seed=0)
    replay.extend(make_batch(network, 3, 2))
    noise = ActionNoise(network, {"arm": Gaussian(), "gripper": Gaussian()}, 0)
    return objective, {
        "config": CONFIG,
        "counters": {"frames": 6, "updates": 2},
        "network": network.state_dict(),
        "target": objective.target.state_dict(),
        "optimizer": optimizer.state_dict(),
        "aggregator": objective.aggregator.state_dict(),
        "exploration": noise.state_dict(),
        "normaliser": {},
        "replay": replay.state_dict(),
    }


def leaves(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            assert type(key) in (str, int), f"{path}: key {key!r}"
            yield from leaves(value, (*path, key))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from leaves(value, (*path, i))
    else:
        yield path, node


def test_g01_a_checkpoint_holds_plain_values_and_tensors_only(make_network, make_batch, tmp_path):
    _, state = state_of(make_network, make_batch)
    save_checkpoint(tmp_path / "last.pt", state)
    loaded = torch.load(tmp_path / "last.pt")  # safe loading is torch's default
    found = list(leaves(loaded))
    assert len(found) > 50
    for path, leaf in found:
        assert leaf is None or type(leaf) in (torch.Tensor, int, float, str, bool), f"{path} is a {type(leaf)}"
        assert not torch.is_tensor(leaf) or (not leaf.requires_grad and leaf.grad_fn is None), f"{path} has a graph"
    assert set(loaded) == {"format", "versions", *state}
    assert loaded["versions"]["torch"].startswith("2.")


def test_g01_it_comes_back_as_it_was(make_network, make_batch, tmp_path):
    objective, state = state_of(make_network, make_batch)
    save_checkpoint(tmp_path / "last.pt", state)
    loaded = load_checkpoint(tmp_path / "last.pt")
    assert loaded["config"] == CONFIG and loaded["counters"] == state["counters"]
    fresh, _ = state_of(make_network, make_batch, seed=1)
    assert not torch.equal(fresh.network.head("arm").body[0].weight, objective.network.head("arm").body[0].weight)
    for name, module in (("network", fresh.network), ("target", fresh.target)):
        load_module(module, loaded[name], name, tmp_path / "last.pt")
        for key, value in module.state_dict().items():
            assert torch.equal(value, state[name][key])


def test_g01_a_file_is_self_contained_not_a_view_of_live_tensors(make_network, make_batch, tmp_path):
    objective, state = state_of(make_network, make_batch)
    save_checkpoint(tmp_path / "last.pt", state)
    before = objective.network.head("arm").body[0].weight.detach().clone()
    with torch.no_grad():
        objective.network.head("arm").body[0].weight.add_(1.0)
    assert torch.equal(load_checkpoint(tmp_path / "last.pt")["network"]["head_arm.body.0.weight"], before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head_arm.body.0.weight"), r'Missing key.*"head_arm.body.0.weight"'),
        (lambda state: state.update({"head_leg.body.0.weight": torch.zeros(1)}), r'Unexpected key.*"head_leg'),
        (lambda state: state.update({"trunk.body.0.bias": torch.zeros(9)}), r"size mismatch for trunk.body.0.bias"),
    ],
)
def test_g01_a_state_that_does_not_fit_is_refused_by_key(make_network, make_batch, tmp_path, change, message):
    objective, state = state_of(make_network, make_batch)
    network = dict(state["network"])
    change(network)
    save_checkpoint(tmp_path / "last.pt", state | {"network": network})
    loaded = load_checkpoint(tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match=rf"(?s)last.pt: entry 'network' does not fit.*{message}"):
        load_module(objective.network, loaded["network"], "network", tmp_path / "last.pt")


def test_g01_the_extra_state_of_other_losses_is_refused_with_the_file(tmp_path):
    rule, other = DWA(losses=["arm", "value"]), DWA(losses=["arm", "leg"])
    message = r"last.pt: entry 'aggregator' does not fit.*the state is that of the losses \('arm', 'value'\)"
    with pytest.raises(CheckpointError, match=message):
        load_module(other, rule.state_dict(), "aggregator", tmp_path / "last.pt")


@pytest.mark.parametrize("key", checkpoint_module.ENTRIES)
def test_g01_a_missing_entry_is_named(make_network, make_batch, tmp_path, key):
    _, state = state_of(make_network, make_batch)
    del state[key]
    save_checkpoint(tmp_path / "last.pt", state)
    with pytest.raises(CheckpointError, match=rf"last.pt has no entry '{key}'"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize("keep", [lambda n: 0, lambda n: 100, lambda n: n // 2, lambda n: n - 10])
def test_h03_a_torn_file_is_refused_by_name(make_network, make_batch, tmp_path, keep):
    path = tmp_path / "last.pt"
    save_checkpoint(path, state_of(make_network, make_batch)[1])
    content = path.read_bytes()
    path.write_bytes(content[: keep(len(content))])
    with pytest.raises(TornCheckpointError, match=r"last.pt cannot be read"):
        load_checkpoint(path)


def test_a_missing_file_and_other_formats_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing.pt does not exist"):
        load_checkpoint(tmp_path / "nothing.pt")
    for content, found in (({"format": 99}, "99"), ({}, "None"), ([1, 2], "'list'"), (torch.zeros(2), "'Tensor'")):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(CheckpointError, match=f"format {found}"):
            load_checkpoint(tmp_path / "other.pt")


class Stranger:
    """Not a tensor nor a plain value."""


def test_g01_a_pickled_object_is_refused(tmp_path):
    torch.save({"format": 1, "config": Stranger()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        load_checkpoint(tmp_path / "bad.pt")


@pytest.mark.parametrize("where", ["trunk._target_", "heads.arm._target_", "env.wrappers.1._target_"])
def test_foreign_code_in_the_config_is_refused_unless_trusted(make_network, make_batch, tmp_path, where):
    _, state = state_of(make_network, make_batch)
    config = {
        "trunk": {"_target_": "mhrl.trunks.MLPTrunk"},
        "heads": {"arm": {"_target_": "mhrl.heads.DeterministicHead"}},
        "env": {
            "_target_": "gymnasium.make",
            "wrappers": [{"_target_": "torch.nn.Identity"}, {"_target_": "torchrl.modules.MLP"}],
        },
    }
    save_checkpoint(tmp_path / "last.pt", state | {"config": config})
    assert load_checkpoint(tmp_path / "last.pt")["config"] == config

    node = config
    for part in where.split(".")[:-1]:
        node = node[int(part)] if part.isdigit() else node[part]
    # Code by any name: outside, through a trusted package, a trusted package's function, a class that builds nothing.
    for foreign in (
        "os.system",
        "torch.os.system",
        "torch.hub.load",
        "mhrl.loading.load_run",
        "torch.Tensor",
        "torch.X",
    ):
        node["_target_"] = foreign
        save_checkpoint(tmp_path / "last.pt", state | {"config": config})
        with pytest.raises(CheckpointError, match=rf"{where}={foreign} is not a class of"):
            load_checkpoint(tmp_path / "last.pt")
    assert load_checkpoint(tmp_path / "last.pt", trust_config=True)["config"] == config


@pytest.mark.parametrize("target", ["mhrlx.Head", "torchvision.ops.MLP", "my.torch.Head", "mhrl_evil.Head"])
def test_a_package_is_trusted_by_its_whole_name(make_network, make_batch, tmp_path, target):
    _, state = state_of(make_network, make_batch)
    save_checkpoint(tmp_path / "last.pt", state | {"config": {"heads": {"arm": {"_target_": target}}}})
    with pytest.raises(CheckpointError, match=f"heads.arm._target_={target}"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize("target", ["torchrl.envs.GymEnv", "torch.fx.GraphModule", "gymnasium.vector.AsyncVectorEnv"])
def test_a_module_that_runs_what_it_is_given_is_foreign_code(make_network, make_batch, tmp_path, target):
    _, state = state_of(make_network, make_batch)
    config = {"trunk": {"_target_": "mhrl.trunks.MLPTrunk", "activation": {"_target_": target}}}
    save_checkpoint(tmp_path / "last.pt", state | {"config": config})
    with pytest.raises(CheckpointError, match=f"trunk.activation._target_={target}"):
        load_checkpoint(tmp_path / "last.pt")


def test_what_would_be_resolved_after_the_check_is_foreign_code(make_network, make_batch, tmp_path):
    _, state = state_of(make_network, make_batch)
    config = {"name": "evil:Pendulum-v1", "env": {"_target_": "gymnasium.make", "id": "${name}"}}
    save_checkpoint(tmp_path / "last.pt", state | {"config": config})
    with pytest.raises(CheckpointError, match="its config is not resolved"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize("target", ["torch.nn.ReLU", "torch.optim.Adam", "torchrl.modules.MLP", "mhrl.heads.QHead"])
def test_what_builds_a_part_of_a_run_is_trusted(make_network, make_batch, tmp_path, target):
    _, state = state_of(make_network, make_batch)
    save_checkpoint(tmp_path / "last.pt", state | {"config": {"trunk": {"_target_": target}}})
    assert load_checkpoint(tmp_path / "last.pt")["config"]["trunk"]["_target_"] == target


def test_targets_finds_every_one_with_its_key():
    config = {"_target_": "a.B", "x": [{"_target_": "c.D"}, 1, [{"y": {"_target_": "e.F"}}]], "z": "_target_"}
    assert set(targets(config)) == {("_target_", "a.B"), ("x.0._target_", "c.D"), ("x.2.0.y._target_", "e.F")}


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (RuntimeError("disk full"), CheckpointError),  # as torch's writer has it
        (OSError(28, "disk full"), CheckpointError),
        (KeyboardInterrupt("disk full"), KeyboardInterrupt),
    ],
)
def test_h03_a_failed_save_leaves_the_old_file_and_no_other(
    monkeypatch, make_network, make_batch, tmp_path, failure, raised
):
    path, (_, state) = tmp_path / "last.pt", state_of(make_network, make_batch)
    save_checkpoint(path, state)
    old = path.read_bytes()

    def torn(value, file):
        file.write(b"half")
        raise failure

    monkeypatch.setattr(checkpoint_module.torch, "save", torn)
    with pytest.raises(raised, match="disk full"):
        save_checkpoint(path, state | {"counters": {"frames": 7}})
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_h03_the_new_file_is_complete_and_synced_before_it_takes_the_name(monkeypatch, tmp_path):
    events, path = [], tmp_path / "last.pt"
    replace, sync = os.replace, os.fsync

    def spy(old, new):
        events.append("rename")
        torch.load(old)  # whole already
        return replace(old, new)

    monkeypatch.setattr(os, "replace", spy)
    monkeypatch.setattr(os, "fsync", lambda file: events.append("sync") or sync(file))
    save_checkpoint(path, {"network": nn.Linear(2, 2).state_dict()})
    assert events[:2] == ["sync", "rename"] and path.is_file()


def test_an_env_id_that_imports_a_module_is_code_too(make_network, make_batch, tmp_path):
    _, state = state_of(make_network, make_batch)
    config = {"env": {"_target_": "gymnasium.make", "id": "antigravity:Pendulum-v1"}}
    save_checkpoint(tmp_path / "last.pt", state | {"config": config})
    with pytest.raises(CheckpointError, match=r"env.id imports a module"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize("damage", [b"\0" * 16, b"\xff" * 16])
def test_h03_bytes_that_changed_are_found(make_network, make_batch, tmp_path, damage):
    """Of the same length, as a bad disk or copy leaves them: a mapped file is read without its check sums."""
    path, (_, state) = tmp_path / "last.pt", state_of(make_network, make_batch)
    save_checkpoint(path, state)
    content = path.read_bytes()
    place = content.index(state["network"]["trunk.body.0.weight"].numpy().tobytes())
    path.write_bytes(content[:place] + damage + content[place + len(damage) :])
    with pytest.raises(TornCheckpointError, match=r"last\.pt cannot be read: its part .* has changed"):
        load_checkpoint(path)


def test_h03_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "last.pt").touch()
    with pytest.raises(TornCheckpointError, match=r"last\.pt cannot be read: it is empty"):
        load_checkpoint(tmp_path / "last.pt")


def test_g01_numpy_comes_back_as_it_was(tmp_path):
    state = {key: {} for key in checkpoint_module.ENTRIES}
    backwards = np.arange(6, dtype=np.float32).reshape(2, 3)[::-1]
    backwards.flags.writeable = False
    env = {
        "array": backwards,
        "empty": np.zeros((0, 2), np.int64),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),  # BLAS gives other last bits for another order
        "bytes": np.array([7, 8], np.uint8),
        "flags": np.array(True),
        "scalar": np.float32(0.1),
        "generator": np.random.default_rng(3).bit_generator.state,  # integers of 128 bits
        "legacy": np.random.RandomState(3).get_state(),  # a tuple with an array
        "nested": [(1, "a", None), {"b": [np.int16(-5)]}],
    }
    save_checkpoint(tmp_path / "last.pt", state | {"env": env})
    raw = torch.load(tmp_path / "last.pt", weights_only=True)["env"]
    assert all(leaf is None or type(leaf) in (torch.Tensor, int, float, str, bool) for _, leaf in leaves(raw))
    found = load_checkpoint(tmp_path / "last.pt")["env"]
    for name in ("array", "empty", "columns", "bytes", "flags"):
        assert found[name].dtype == env[name].dtype and np.array_equal(found[name], env[name])
    assert found["columns"].strides == env["columns"].strides
    assert type(found["scalar"]) is np.float32 and found["scalar"] == env["scalar"]
    assert found["generator"] == env["generator"] and found["nested"] == env["nested"]
    assert type(found["nested"][0]) is tuple and type(found["nested"][1]["b"][0]) is np.int16
    right, back = np.random.RandomState(3), np.random.RandomState(0)
    back.set_state(found["legacy"])
    assert back.normal() == right.normal()


def adam(rates, steps=0):
    """Adam over layers `a` and `b`, one group for each rate; with `steps` steps behind it."""
    torch.manual_seed(0)
    layers = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(1, 1)})
    groups = {}
    for name, parameter in layers.named_parameters():
        groups.setdefault(rates[name[0]], []).append((name, parameter))
    optimizer = torch.optim.Adam([{"params": named, "lr": rate} for rate, named in groups.items()])
    for _ in range(steps):
        optimizer.zero_grad()
        layers["b"](layers["a"](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    return layers, optimizer


def test_an_optimizer_goes_on_by_name_though_its_groups_are_others(tmp_path):
    layers, trained = adam({"a": 0.1, "b": 0.1}, steps=3)
    fresh_layers, fresh = adam({"a": 0.02, "b": 0.5})
    load_optimizer(fresh, trained.state_dict(), tmp_path)
    assert [group["lr"] for group in fresh.param_groups] == [0.02, 0.5]  # the config's
    for name, parameter in fresh_layers.named_parameters():
        state = trained.state[layers.get_parameter(name)]
        assert set(fresh.state[parameter]) == set(state) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(fresh.state[parameter][key], state[key]) for key in state)


def test_a_parameter_that_was_never_stepped_has_no_state_afterwards(tmp_path):
    _, untrained = adam({"a": 0.1, "b": 0.1})
    _, fresh = adam({"a": 0.1, "b": 0.1})
    load_optimizer(fresh, untrained.state_dict(), tmp_path)
    assert fresh.state_dict()["state"] == {}


def test_an_optimizer_of_other_parameters_is_refused_by_name(tmp_path):
    _, optimizer = adam({"a": 0.1, "b": 0.1})
    state = deepcopy(optimizer.state_dict())
    state["param_groups"][0]["param_names"][0] = "c.weight"
    with pytest.raises(CheckpointError, match=r"entry 'optimizer' does not fit: a\.weight, c\.weight"):
        load_optimizer(optimizer, state, tmp_path)
