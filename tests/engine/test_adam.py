import pytest
import torch

from mhrl.engine.adam import Adam, Change, unsupported

SETTINGS = [
    {},
    {"lr": 0.1, "betas": (0.5, 0.75), "eps": 0.25},
    {"betas": (0.0, 0.5)},
    {"weight_decay": 0.3},
    {"weight_decay": 0.3, "decoupled_weight_decay": True},
]


def parameter():
    return torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64))


def gradients(count=4):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_step_is_that_of_torchs_optimizer(kind, settings):
    if kind is torch.optim.AdamW:
        settings = {key: value for key, value in settings.items() if key != "decoupled_weight_decay"}
    theirs, ours = parameter(), parameter()
    right, optimizer = kind([theirs], **settings), kind([ours], **settings)
    adam, state = Adam(optimizer), Adam(optimizer).state(ours)
    for gradient in gradients():
        theirs.grad = gradient
        right.step()
        adam.step([Change(ours, ours.data, gradient, state)], torch.tensor(True))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    adam.adopt(ours, state)
    for key, value in right.state[theirs].items():
        torch.testing.assert_close(optimizer.state[ours][key], value, rtol=1e-12, atol=0)


def test_what_is_not_applied_changes_nothing():
    value = parameter()
    adam = Adam(torch.optim.Adam([value]))
    state, before = adam.state(value), value.detach().clone()
    adam.step([Change(value, value.data, torch.full_like(before, float("nan")), state)], torch.tensor(False))
    assert torch.equal(value, before) and [part.abs().sum().item() for part in state] == [0.0, 0.0, 0.0]


def test_the_first_step_by_hand():
    # m = 0.1 g, v = 0.001 g^2, both divided by what they lack: g / |g|, the learning rate's length.
    value = parameter()
    adam = Adam(torch.optim.Adam([value], lr=0.01, eps=0.0))
    gradient = torch.tensor([5.0, -3.0, 0.1, -1e-3], dtype=torch.float64)
    adam.step([Change(value, value.data, gradient, adam.state(value))], torch.tensor(True))
    assert value.tolist() == pytest.approx([0.99, -1.99, 0.49, 3.01], rel=1e-9)


def test_other_optimizers_are_told_apart():
    assert unsupported(torch.optim.Adam([parameter()])) == "" == unsupported(torch.optim.AdamW([parameter()]))
    assert unsupported(torch.optim.SGD([parameter()], 0.1)) == "the optimizer is SGD: Adam or AdamW can be traced"
    assert unsupported(torch.optim.Adam([parameter()], amsgrad=True)) == "optimizer.amsgrad is not traced"
    assert unsupported(torch.optim.AdamW([parameter()], maximize=True)) == "optimizer.maximize is not traced"
