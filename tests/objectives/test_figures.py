import pytest
import torch

from mhrl.objectives.figures import bin_usage, saturation

INF = float("inf")


def test_bin_usage_by_hand():
    # Rows prefer values 0, 2, 2 of the first branch (2 of 3), and value 1 of the second, which has two (1 of 2).
    values = torch.tensor(
        [
            [[5.0, 1.0, 2.0], [0.0, 1.0, -INF]],
            [[0.0, 1.0, 2.0], [3.0, 4.0, -INF]],
            [[-3.0, -2.0, -1.0], [-9.0, -8.0, -INF]],
        ]
    )
    assert bin_usage(values).tolist() == pytest.approx([2 / 3, 1 / 2])
    assert bin_usage(values.reshape(3, 1, 2, 3)).tolist() == pytest.approx([2 / 3, 1 / 2])
    # Without value 2 the last two rows prefer value 1 of the first branch: all but value 2 is used.
    mask = torch.tensor([[True, True, False], [True, True, False]]).expand(3, 2, 3)
    assert bin_usage(values, mask).tolist() == pytest.approx([2 / 3, 1 / 2])
    # Now the first row may take value 2 only: three rows, two values again, but others.
    mask = mask.clone()
    mask[0, 0] = torch.tensor([False, False, True])
    mask[1, 1] = torch.tensor([True, False, False])
    assert bin_usage(values, mask).tolist() == pytest.approx([2 / 3, 1.0])


def test_a_branch_of_one_value_uses_all_of_it():
    assert bin_usage(torch.tensor([[[3.0]], [[4.0]]])).tolist() == [1.0]


def test_saturation_by_hand(make_network):
    # Boxes: arm [-1, 3] and [0, 2], half-ranges 2 and 1; gripper [-10, 10], half-range 10. Flat order: arm 0 and 2.
    network = make_network({"arm": (0, 2), "gripper": (1,)}, low=[-1, -10, 0], high=[3, 10, 2])
    arm = [[-1.0, 1.0], [-0.99, 0.02], [2.985, 1.5], [2.97, 1.995]]  # near: 1st; 1st; 1st; 2nd
    gripper = [[9.91], [-9.95], [0.0], [9.89]]
    found = saturation(network, {"arm": torch.tensor(arm), "gripper": torch.tensor(gripper)})
    assert {head: part.item() for head, part in found.items()} == {"arm": 4 / 8, "gripper": 2 / 4}
    in_time = {"arm": torch.tensor(arm).reshape(2, 2, 2), "gripper": torch.tensor(gripper).reshape(2, 2, 1)}
    assert {head: part.item() for head, part in saturation(network, in_time).items()} == {"arm": 0.5, "gripper": 0.5}


def test_the_order_of_heads_does_not_matter(make_network):
    # `arm` covers the last dimension, so that its actions come after those of `gripper` in flat order.
    network = make_network({"arm": (2,), "gripper": (1, 0)}, low=[-1, -1, -1], high=[1, 1, 1])
    actions = {"arm": torch.tensor([[1.0], [1.0]]), "gripper": torch.tensor([[0.0, 1.0], [0.0, 0.5]])}
    assert {head: part.item() for head, part in saturation(network, actions).items()} == {"arm": 1.0, "gripper": 0.25}


def test_dimensions_without_width_do_not_count(make_network):
    network = make_network({"arm": (0, 1), "gripper": (2,)}, low=[-1, 2, 5], high=[1, 2, 5])
    actions = {"arm": torch.tensor([[1.0, 2.0], [0.0, 2.0]]), "gripper": torch.tensor([[5.0], [5.0]])}
    assert {head: part.item() for head, part in saturation(network, actions).items()} == {"arm": 0.5, "gripper": 0.0}
