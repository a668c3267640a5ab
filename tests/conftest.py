"""Small networks, batches and a hand-made objective; every test file that needs one asks for the factory."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from mhrl import builder
from mhrl.aggregators import WeightedSum
from mhrl.envs import EnvSpaces, Leaf, action_leaves
from mhrl.envs.masks import MaskReader
from mhrl.heads import DeterministicHead, QHead
from mhrl.layout import HeadSpec
from mhrl.network import Network
from mhrl.objectives import Objective
from mhrl.resolve import resolve_heads
from mhrl.trunks import CNNTrunk, IdentityTrunk, MLPTrunk

torch.set_num_threads(1)
settings.register_profile("mhrl", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("mhrl")


def build_trunk(kind="mlp", size=3):
    if kind == "cnn":
        spaces = {("observation", "img"): Box(0, 255, (3, 6, 6), np.uint8), ("observation", "vec"): Box(-1, 1, (2,))}
        return CNNTrunk(spaces, [4], [3], [2], [5], activation="tanh")
    spaces = {"observation": Box(-1, 1, (size,))}
    return IdentityTrunk(spaces) if kind == "identity" else MLPTrunk(spaces, [5], activation="tanh")


def build_network(heads=None, *, trunk="mlp", low=None, high=None, in_keys=None, critic=None, seed=0, double=False):
    """A network of tanh layers with a head for each entry of `{name: dims}`; random asymmetric bounds by default."""
    torch.manual_seed(seed)
    heads = {"arm": (0,), "gripper": (1,)} if heads is None else heads
    count = sum(map(len, heads.values()))
    low = np.asarray([-1.0, 0.0, -0.5, 2.0, -3.0, 1.0][:count] if low is None else low, np.float32)
    high = np.asarray([3.0, 0.5, 0.25, 4.0, -1.0, 1.5][:count] if high is None else high, np.float32)
    trunk = build_trunk(trunk) if isinstance(trunk, str) else trunk
    sizes = {"features": trunk.out_features, "observation": IdentityTrunk(trunk.spaces).out_features}
    modules, specs = {}, {}
    for name, dims in {**heads, "value": tuple(range(count))}.items():
        keys = (in_keys or {}).get(name, ("features",))
        size, box = sum(sizes[key] for key in keys), Box(low[list(dims)], high[list(dims)])
        head = QHead if name == "value" else DeterministicHead
        modules[name] = (
            critic if name == "value" and critic else head(size, box, widths=[6], activation="tanh", final_init=None)
        )
        specs[name] = HeadSpec("", (), keys) if name == "value" else HeadSpec("action", tuple(dims), keys)
    network = Network(trunk, modules, specs, (Leaf("action", "action", Box(low, high)),))
    return network.double() if double else network


KINDS = {
    "deterministic": {"_target_": "mhrl.heads.DeterministicHead", "widths": [6], "activation": "tanh"},
    "branch": {"_target_": "mhrl.heads.QHead", "widths": [6], "activation": "tanh", "final_init": None},
    "critic": {"_target_": "mhrl.heads.QHead", "widths": [6], "activation": "tanh", "final_init": None},
}


def build_agent(space, heads=None, *, trunk="mlp", masks=False, seed=0, double=False, **fields):
    """A network for any action space, with the heads that a config would give it; `fields` are the objective's."""
    torch.manual_seed(seed)
    trunk = build_trunk(trunk) if isinstance(trunk, str) else trunk
    observations = tuple(Leaf(str(key), key, space) for key, space in trunk.spaces.items())
    actions = action_leaves(space)
    spaces = EnvSpaces(observations, MaskReader(space, actions).leaves if masks else (), actions)
    needed = {name: fields[name] for name in ("bins", "dueling") if name in fields}
    config = {"heads": resolve_heads(heads or {}, actions, KINDS, **needed), "objective": fields}
    network = builder.build_network(config, trunk, spaces)
    return network.double() if double else network


def build_batch(network, *shape, seed=1):
    """Random rows `[*shape]` for `network`, a third of them terminated."""
    rng = np.random.default_rng(seed)
    shape = shape or (6,)

    def observation():
        rows = {}
        for key, space in network.trunk.spaces.items():
            values = rng.uniform(space.low, space.high, (*shape, *space.shape))
            rows[key] = torch.as_tensor(values.astype(space.dtype))
        return rows

    batch = TensorDict({}, shape)
    for key, value in observation().items():
        batch[key] = value
    for leaf in network.layout.leaves:
        box, size = leaf.box, (*shape, *leaf.box.shape)
        values = (
            rng.integers(box.low, box.high, size, endpoint=True)
            if leaf.discrete
            else rng.uniform(box.low, box.high, size)
        )
        batch[leaf.key] = torch.as_tensor(values.astype(box.dtype))
    for leaf in network.layout.masks:
        for key in (leaf.key, ("next", *([leaf.key] if isinstance(leaf.key, str) else leaf.key))):
            batch[key] = torch.as_tensor(rng.random((*shape, *leaf.box.shape)) < 0.6) | (
                torch.arange(leaf.size) % 2 == 0
            )
    for key, value in observation().items():
        batch[("next", *([key] if isinstance(key, str) else key))] = value
    batch["next", "reward"] = torch.as_tensor(rng.normal(size=(*shape, 1)).astype(np.float32))
    batch["next", "terminated"] = torch.as_tensor(rng.random((*shape, 1)) < 1 / 3)
    batch["next", "truncated"] = torch.as_tensor(rng.random((*shape, 1)) < 1 / 3)
    batch["next", "done"] = batch["next", "terminated"] | batch["next", "truncated"]
    return batch


class ToyObjective(Objective):
    """Linear heads on a linear trunk; a loss is the mean square of its head's output, times `poison[loss]`."""

    def __init__(self, aggregator=None, heads=None, seed=0, **poison):
        super().__init__(WeightedSum() if aggregator is None else aggregator)
        torch.manual_seed(seed)
        self.network = nn.ModuleDict({"trunk": nn.Linear(3, 4)})
        for name, size in (heads or {"a": 2, "b": 3}).items():
            self.network[name] = nn.Linear(4, size)
        self.poison = poison
        self.target_updates = []

    @classmethod
    def loss_names(cls, network, **options):
        return tuple(name for name in network if name != "trunk")

    @property
    def names(self):
        return self.loss_names(self.network)

    @property
    def routes(self):
        return {name: (name, "trunk") for name in self.names}

    @property
    def row_of(self):
        return {name: name for name in self.names}

    def due(self, updates):
        return self.names

    def losses(self, batch, active=None):
        active = self.names if active is None else active
        rows = self.aggregator.fan_out(self.network["trunk"](batch["x"]), self.rows(active))
        losses = {}
        for name in active:
            poison = self.poison.get(name, 1.0)
            output = self.network[name](rows[name])
            losses[name] = poison(output) if callable(poison) else output.square().mean() * poison
        return TensorDict(losses), TensorDict({})

    def summary(self, metrics):
        return {}

    def update_target(self, updates):
        self.target_updates.append(updates)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def make_network():
    return build_network


@pytest.fixture(scope="session")
def make_agent():
    return build_agent


@pytest.fixture(scope="session")
def make_batch():
    return build_batch


@pytest.fixture(scope="session")
def make_toy():
    return ToyObjective


def _leaf_spaces():
    shapes = st.sampled_from([(), (1,), (3,), (2, 2)])
    seeds = st.integers(0, 2**16).map(np.random.default_rng)

    def real(shape, dtype, rng):
        low = rng.uniform(-10, 10, shape).astype(dtype)
        return Box(low, (low + rng.choice([0.0, 0.25, 2.0], shape)).astype(dtype), shape, dtype)

    def whole(shape, dtype, rng):
        low = rng.integers(0, 9, shape)
        return Box(low.astype(dtype), (low + rng.integers(0, 4, shape)).astype(dtype), shape, dtype)

    def several(shape, dtype, rng):
        return MultiDiscrete(rng.integers(1, 5, shape), dtype, start=rng.integers(0, 9, shape))

    integers = st.sampled_from([np.int8, np.uint8, np.int32, np.uint16, np.int64])
    return st.one_of(
        st.builds(Discrete, st.integers(1, 5), start=st.integers(-3, 9)),
        st.builds(several, shapes.filter(bool), integers, seeds),
        st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
        st.builds(whole, shapes, integers, seeds),
        st.builds(real, shapes, st.sampled_from([np.float32, np.float64]), seeds),
    )


def _containers(parts):
    keys = st.permutations("abcd")  # a Dict keeps the order of pairs
    named = st.builds(lambda keys, parts: Dict(list(zip(keys, parts, strict=False))), keys, st.lists(parts, min_size=1))
    return st.one_of(named, st.lists(parts, min_size=1, max_size=3).map(Tuple))


@pytest.fixture(scope="session")
def action_spaces():
    """A strategy: action spaces of any nesting, whose names do not collide."""
    return st.recursive(_leaf_spaces(), _containers, max_leaves=6)
