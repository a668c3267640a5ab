import torch
from hypothesis import given
from hypothesis import strategies as st

from mhrl.exploration import Gaussian, GaussianNoise

LOW, HIGH = [-1.0, 0.0, -10.0], [3.0, 0.5, 10.0]


@given(
    arm=st.floats(0, 2),
    gripper=st.floats(0, 2),
    end=st.floats(0, 2),
    length=st.integers(1, 1000),
    frames=st.integers(0, 2000),
    seed=st.integers(0, 2**31),
)
def test_gaussian_noise_bit_for_bit(make_network, arm, gripper, end, length, frames, seed):
    """Against the formula itself, in float32: linear schedule, times the half-range, clipped."""
    network = make_network({"arm": (2, 0), "gripper": (1,)}, low=LOW, high=HIGH)
    heads = {"arm": Gaussian(arm, std_end=end, anneal_frames=length), "gripper": Gaussian(gripper)}
    noise = GaussianNoise(network, heads, seed)
    half_range, low, high = torch.tensor([2.0, 0.25, 10.0]), torch.tensor(LOW), torch.tensor(HIGH)
    first, last = half_range * torch.tensor([arm, gripper, arm]), half_range * torch.tensor([end, gripper, end])
    progress = (torch.tensor(frames) / torch.tensor([float(length), 1.0, float(length)])).clamp(max=1)
    generator, action = torch.Generator().manual_seed(seed), torch.tensor([1.0, 0.25, 0.0]).expand(5, 3)
    noise.step(frames)
    for _ in range(3):  # nothing is carried from one step to the next
        right = action + torch.randn((5, 3), generator=generator) * torch.lerp(first, last, progress)
        assert torch.equal(noise.perturb(action), right.clamp(low, high))
    assert not noise.x.any()
