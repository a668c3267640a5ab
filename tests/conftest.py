"""Small networks, batches and a hand-made objective; every test file that needs one asks for the factory."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import settings
from tensordict import TensorDict
from torch import nn

from mhrl.aggregators import WeightedSum
from mhrl.envs import Leaf
from mhrl.heads import DeterministicHead, QHead
from mhrl.network import HeadSpec, Network
from mhrl.objectives import Objective
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
            critic if name == "value" and critic else head(size, box, [6], activation="tanh", final_init=None)
        )
        specs[name] = HeadSpec("action", tuple(dims), keys)
    network = Network(trunk, modules, specs, (Leaf("action", "action", Box(low, high)),))
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

    space = network.leaf.space
    batch = TensorDict({}, shape)
    for key, value in observation().items():
        batch[key] = value
    batch["action"] = torch.as_tensor(rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32))
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

    @property
    def names(self):
        return tuple(name for name in self.network if name != "trunk")

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
def make_batch():
    return build_batch


@pytest.fixture(scope="session")
def make_toy():
    return ToyObjective
