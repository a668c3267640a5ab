"""One of two processes that share a batch: `python -m torch.distributed.run --nproc-per-node=2 _two_processes.py`.

Each computes the losses of its half; `reduce` adds up what the rule sees, gradients are added up by hand. Each compares
the sum with what it finds for the whole batch alone, and both send each other what they have.
"""

import torch
import torch.distributed as dist
from _properties import Model, build

from mhrl.aggregators import MGDA, UPGrad


def total(tensor):
    """The sum over processes."""
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def half(model, rank):
    """Losses are means: that of the whole batch is half of the sum of the halves'."""
    size = len(model.x) // 2
    own = slice(rank * size, (rank + 1) * size)
    model.x, model.y = model.x[own], {name: y[own] for name, y in model.y.items()}


def gradients(rule, level, rank, *, refresh=1, reduce=None):
    """Two backward passes: the trunk's and heads' gradients of the halves added up, and those of the whole batch."""
    model, whole = Model(), Model()
    half(model, rank)
    aggregator = build(rule, model, level, refresh=refresh, weights=0.5)
    aggregator.reduce = reduce or aggregator.reduce
    alone = build(rule, whole, level, refresh=refresh)
    for _ in range(2):
        aggregator.backward(model.losses(aggregator))
        alone.backward(whole.losses(alone))
        yield {name: total(gradient) for name, gradient in model.gradients().items()}, whole.gradients()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for rule, level, refresh in (
        (UPGrad, "features", 1),
        (UPGrad, "params", 1),
        (UPGrad, "params", 2),
        (MGDA, "features", 1),
    ):
        for found, right in gradients(rule, level, rank, refresh=refresh, reduce=total):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
            mine = torch.cat([gradient.flatten() for gradient in found.values()])
            copies = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(copies, mine)
            assert torch.equal(*copies)
        for found, right in gradients(rule, level, rank):  # each with weights by its own half: something else
            assert (found["trunk.0.weight"] - right["trunk.0.weight"]).abs().max() > 1e-4
    if rank == 0:
        print("the two agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
