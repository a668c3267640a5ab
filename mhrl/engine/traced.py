"""Functions of tensors as one compiled graph.

`make_fx` runs the function once on tensors that have shapes and no values, and notes every operation below autograd: a
backward pass, an optimizer's step and writes to inputs are operations like others. `torch._inductor` compiles the list.
`torch.compile` would have to read the Python code instead, guards what it read at every call, and keeps forward and
backward apart.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

OPTIONS = {
    "fallback_random": True,  # random numbers come from torch's generators, as without compiling
    "size_asserts": False,  # whoever calls has looked at the shapes
}
"""Of inductor."""


DECOMPOSITIONS = {
    torch.ops.aten._foreach_norm.Scalar: lambda tensors, ord=2: [torch.linalg.vector_norm(x, ord) for x in tensors],
}
"""Of what inductor would call as it is."""


@final
class TracedFunction:
    """`function` compiled for inputs of these shapes, strides, dtypes and devices.

    Args:
        function: named tensors to a list of tensors; it may write to its inputs. Neither may it read values, nor depend
            on anything else that changes from call to call, random generators excepted.
        inputs: for example; nothing is computed with them.

    Attributes:
        used: names of the inputs that a call takes, in order; of the others nothing depends.

    Raises:
        Exception: whatever tracing raises where the function reads values, or inductor without a compiler.
    """

    def __init__(self, function: Callable[[dict[Any, Tensor]], list[Tensor]], inputs: dict[Any, Tensor]) -> None:
        def flat(*tensors: Tensor) -> list[Tensor]:
            return function(dict(zip(inputs, tensors, strict=True)))

        graph = make_fx(flat, DECOMPOSITIONS, "fake", _allow_non_fake_inputs=True)(*inputs.values())
        placeholders = dict(zip(inputs, graph.graph.find_nodes(op="placeholder"), strict=True))
        self.used = [name for name, node in placeholders.items() if node.users]
        for node in placeholders.values():
            if not node.users:
                graph.graph.erase_node(node)
        graph.recompile()
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it misses a GPU on every CPU
        # Inductor's cache on disk serves graphs that have a shape environment only, even if no shape varies.
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        examples: list[Any] = [mode.from_tensor(inputs[name].detach(), static_shapes=True) for name in self.used]
        with tracing(TracingContext(mode)):
            self._run = torch._inductor.compile(graph, examples, options=OPTIONS)

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The function's results for the inputs that are `used`."""
        return self._run(*inputs)
