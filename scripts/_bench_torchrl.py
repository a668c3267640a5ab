"""torchrl's DDPGLoss as a contestant, in the loop of its own DDPG example, without logs."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from _bench_contestant import Peer, half_range
from _bench_task import Task
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, EnvBase, GymEnv, TransformedEnv
from torchrl.envs.batched_envs import BatchedEnvBase
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate


def make_env(env_id: str, num_envs: int = 1, kind: Callable[..., BatchedEnvBase] | None = None) -> EnvBase:
    """One env, or several of a kind that step together; they speak float32."""
    one = partial(GymEnv, env_id, device="cpu")
    return TransformedEnv(one() if kind is None else kind(num_envs, one), DoubleToFloat())


def make_actor(env: EnvBase, widths: tuple[int, ...]) -> TensorDictSequential:
    """The greedy policy."""
    action = env.action_spec_unbatched
    net = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=action.shape[-1],
        num_cells=widths,
        activation_class=nn.ReLU,
    )
    proposed = TensorDictModule(net, in_keys=["observation"], out_keys=["action"])
    return TensorDictSequential(proposed, TanhModule(in_keys=["action"], out_keys=["action"], spec=action))


def exploring(actor: TensorDictSequential, env: EnvBase, std: float) -> TensorDictSequential:
    """The policy that collects: noise of `std` half-ranges, clipped to the box."""
    action = env.action_spec_unbatched
    sigma = std * half_range(action.space.low.numpy(), action.space.high.numpy())
    return TensorDictSequential(
        actor, AdditiveGaussianModule(spec=action, sigma_init=sigma, sigma_end=sigma, safe=True)
    )


def make_collector(env: EnvBase, actor: TensorDictSequential, std: float, frames: int, random: int = 0) -> Collector:
    """Rollouts of `frames` frames, the first `random` of all at random."""
    return Collector(
        env,
        exploring(actor, env, std),
        frames_per_batch=frames,
        init_random_frames=random,
        auto_register_policy_transforms=False,  # what it would add tracks starts, which this noise does not ask for
    )


class TorchRL(Peer):
    """Collector, replay buffer, loss, an optimizer each, SoftUpdate."""

    name = "torchrl"

    def __init__(self, task: Task) -> None:
        torch.manual_seed(task.seed)
        self.task = task
        self.env = env = make_env(task.env)
        env.set_seed(task.seed)
        self.actor = make_actor(env, task.widths)
        inputs = env.observation_spec["observation"].shape[-1] + env.action_spec.shape[-1]
        net = MLP(in_features=inputs, out_features=1, num_cells=task.widths, activation_class=nn.ReLU)
        self.critic = ValueOperator(net, in_keys=["observation", "action"])
        self.loss = DDPGLoss(self.actor, self.critic, delay_actor=True, delay_value=True)
        self.loss.make_value_estimator(gamma=task.gamma)
        self.targets = SoftUpdate(self.loss, tau=task.tau)
        self.collector = make_collector(env, self.actor, task.std, 1, task.learning_starts)
        self.rollouts = iter(self.collector)
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(task.capacity), batch_size=task.batch)
        names = {"actor": self.loss.actor_network_params, "critic": self.loss.value_network_params}
        self._optimizers = {
            name: torch.optim.Adam(list(params.flatten_keys().values()), lr=task.lr, fused=True)  # as mhrl's
            for name, params in names.items()
        }
        self.updates = 0

    def fill(self) -> None:
        """See `Contestant`."""
        for _ in range(self.task.learning_starts):
            self._collect()

    def advance(self, steps: int) -> None:
        """See `Contestant`."""
        for _ in range(steps):
            self._collect()
            self._update()

    def _collect(self) -> None:
        self.buffer.extend(next(self.rollouts).reshape(-1))

    def _update(self) -> None:
        batch = self.buffer.sample()
        self.updates += 1
        value, _ = self.loss.loss_value(batch)
        self._optimizers["critic"].zero_grad()
        value.backward()
        self._optimizers["critic"].step()
        if self.updates % self.task.policy_delay:
            return
        policy, _ = self.loss.loss_actor(batch)
        self._optimizers["actor"].zero_grad()
        policy.backward()
        self._optimizers["actor"].step()
        self.targets.step()

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """See `Contestant`."""
        return self.actor(observation=torch.as_tensor(observations, dtype=torch.float32)).numpy()

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """See `Contestant`."""
        return {"actor": self.actor, "critic": self.critic}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """See `Peer`."""
        return self._optimizers

    def close(self) -> None:
        """See `Contestant`."""
        self.collector.shutdown()
