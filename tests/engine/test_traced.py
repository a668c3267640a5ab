import pytest
import torch
from torch._dynamo.utils import counters

from mhrl.engine.traced import TracedFunction


def example():
    return {"w": torch.tensor([1.0, -2.0], requires_grad=True), "x": torch.tensor([3.0, 4.0]), "idle": torch.ones(2)}


def step(tensors):
    """Gradient of `sum (w x)^2` and a step along it, in place; the loss and a random number."""
    loss = (tensors["w"] * tensors["x"]).square().sum()
    (gradient,) = torch.autograd.grad(loss, tensors["w"])
    with torch.no_grad():
        tensors["w"].sub_(0.01 * gradient)
    return [loss.detach(), torch.rand(3)]


@pytest.fixture(scope="module")
def traced():
    inputs = example()
    function = TracedFunction(step, inputs)
    assert inputs["w"].tolist() == [1.0, -2.0]  # tracing computes nothing
    return function


def test_backward_and_writes_are_in_the_graph(traced):
    assert traced.used == ["w", "x"]
    w, x = example()["w"].detach(), torch.tensor([1.0, 2.0])
    # loss 1 * 1 + 4 * 4 = 17, gradient 2 w x^2 = (2, -16)
    assert traced([w, x])[0].item() == 17.0
    assert w.tolist() == pytest.approx([0.98, -1.84])
    # 0.98^2 + 3.68^2
    assert traced([w, x])[0].item() == pytest.approx(14.5028)


def test_random_numbers_are_those_of_torchs_generator(traced):
    w, x = example()["w"].detach(), torch.ones(2)
    torch.manual_seed(3)
    drawn = [traced([w, x])[1] for _ in range(2)]
    torch.manual_seed(3)
    assert torch.equal(drawn[0], torch.rand(3)) and torch.equal(drawn[1], torch.rand(3))


def test_what_reads_values_is_refused():
    def branches(tensors):
        return [tensors["x"] if tensors["x"].sum() > 0 else -tensors["x"]]

    with pytest.raises(Exception, match=r"data-dependent"):
        TracedFunction(branches, example())


def test_what_is_compiled_again_comes_from_the_cache_with_constants_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for number, hits in ((2.0, 0), (5.0, 1)):
        counters.clear()
        scalar, several = torch.tensor(number), torch.tensor([number, 1.0])

        def function(tensors, scalar=scalar, several=several):
            return [tensors["x"] * several + scalar]

        traced = TracedFunction(function, example())
        assert traced([torch.tensor([3.0, 4.0])])[0].tolist() == [3 * number + number, 4 + number]
        assert counters["inductor"]["fxgraph_cache_hit"] == hits
