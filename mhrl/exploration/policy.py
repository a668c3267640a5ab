"""The policy that collects.

Shapes: `N` envs.
"""

from collections.abc import Mapping
from typing import final

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from mhrl.exploration.noise import ActionNoise
from mhrl.policy import GreedyPolicy, write_actions
from mhrl.trunks import Key


@final
class ExploringPolicy(TensorDictModuleBase):
    """normaliser > trunk > action heads > exploration: what collects, without gradients.

    Args:
        greedy: the network's policy.
        noise: what explores around its choice.
    """

    def __init__(self, greedy: GreedyPolicy, noise: ActionNoise) -> None:
        super().__init__()
        self.greedy = greedy
        self.noise = noise
        self.in_keys = greedy.in_keys
        self.out_keys = greedy.out_keys

    def act(self, observation: Mapping[Key, Tensor], frames: int, is_init: Tensor | None = None) -> dict[Key, Tensor]:
        """Exploring action leaves `{key: [N, *leaf shape]}`, on the CPU.

        Args:
            observation: raw leaves, with their masks.
            frames: env transitions so far, for the schedule.
            is_init: bool `[N]`, True where an episode starts; None: nowhere.
        """
        self.noise.step(frames)
        return self._act(observation, is_init)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write exploring actions of the action leaves' dtypes and inside their spaces into `tensordict`.

        Reads `is_init` where it is there (torchrl's `InitTracker` writes it); else no episode starts in these rows.
        """
        observation = {key: tensordict.get(key) for key in self.in_keys}
        actions = self._act(observation, tensordict.get("is_init", None))
        return write_actions(tensordict, actions, self.greedy.network.layout.leaves)

    def _act(self, observation: Mapping[Key, Tensor], is_init: Tensor | None) -> dict[Key, Tensor]:
        choice = self.greedy.choose(observation)
        device = choice.action.device
        action, index = self.noise.perturb(choice, is_init)
        actions = self.greedy.network.write(action.to(device), index.to(device))
        return {key: action.cpu() for key, action in actions.items()}
