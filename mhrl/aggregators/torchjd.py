"""Any method of torchjd that goes by inner products."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from mhrl.aggregators.gram import without_zeros
from mhrl.aggregators.row_weighting import RowWeighting

UNFIT = {
    "ExcessMTLWeighting": "it adds up the squares of all numbers in each row, and there are inner products only",
    "MoDoWeighting": "it needs inner products of the rows of two independent batches, and there is one batch",
    "SDMGradWeighting": "it needs inner products of the rows of two independent batches, and there is one batch",
}
"""Weightings that cannot be had, and why."""

MEMORY = {
    "CRMOGMWeighting": ("_lambda",),
    "GradVacWeighting": ("_phi_t", "_state_key"),
    "PCDWeighting": ("_sq_norm_ema", "_n_steps", "_state_key"),
}
"""Attributes in which a weighting remembers earlier calls: numbers, tensors, or tuples with a dtype."""


@final
class TorchJD(RowWeighting):
    """The weights that one of torchjd's weightings gives for the Gram matrix; see its documentation.

    The matrix has trace 1, so that the direction's length is proportional to the gradients' whatever the method, and a
    weighting that remembers norms remembers shares. What it remembers is kept apart for each set of rows that are not
    zero, and is in the checkpoint.

    Args:
        weighting: `{_target_: torchjd.aggregation.DualProjWeighting}` in a config.
        *arguments, **options: those of `RowWeighting`.

    Raises:
        ValueError: as `RowWeighting`, or if `weighting` is none, needs more than the Gram matrix, or remembers what
            cannot be saved.
        ImportError: if torchjd is missing.
    """

    name = "torchjd"

    def __init__(self, weighting: nn.Module, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        _check(weighting)
        self._weighting = (weighting,)  # no submodule: what it remembers is saved here, for each set of rows
        self._memory: dict[str, dict[str, Any]] = {}
        self._blank = self._remembered()

    @property
    def label(self) -> str:
        """The weighting's name and the level: `torchjd.DualProj@features`."""
        return f"{self.name}.{_title(self._weighting[0])}@{self.level}"

    def row_weights(self, gram: Tensor) -> Tensor:
        """See `RowWeighting.row_weights`; not a pure function if the weighting has a memory."""
        return without_zeros(self._weighting[0], gram)

    def weigh(self, gram: Tensor, names: Sequence[str] = ()) -> Tensor:
        """See `RowWeighting.weigh`; what the weighting remembers is that of the rows that are not zero."""
        if not torch.isfinite(gram).all():
            return torch.full_like(gram[0], torch.nan)
        live = gram.diagonal().tolist()
        key = ",".join(name for name, square in zip(names, live, strict=False) if square)
        self._remember(self._memory.get(key, self._blank))
        weights = super().weigh(gram, names)
        self._memory[key] = self._remembered()
        return weights

    def statistics(self, rows: Tensor, names: tuple[str, ...], outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """See `RowWeighting.statistics`; nothing is remembered."""
        memory = dict(self._memory)
        try:
            return super().statistics(rows, names, outputs)
        finally:
            self._memory = memory

    def _attributes(self) -> list[tuple[str, nn.Module, str]]:
        """A name, the module and the attribute, for all that is remembered."""
        modules = enumerate(self._weighting[0].modules())
        return [(f"{i}{name}", module, name) for i, module in modules for name in MEMORY.get(type(module).__name__, ())]

    def _remembered(self) -> dict[str, Any]:
        """A copy of what the weighting remembers."""
        return {key: _copy(getattr(module, name)) for key, module, name in self._attributes()}

    def _remember(self, memory: Mapping[str, Any]) -> None:
        """Let the weighting remember a copy of this and nothing else."""
        for key, module, name in self._attributes():
            setattr(module, name, _copy(memory[key]))

    def get_extra_state(self) -> dict[str, Any]:
        """The weights that are kept, with their age, and what the weighting remembers."""
        return super().get_extra_state() | {"memory": self._memory}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        super().set_extra_state(state)
        self._memory = {
            key: {name: _copy(value) for name, value in memory.items()} for key, memory in state["memory"].items()
        }


def _check(weighting: Any) -> None:  # noqa: ANN401
    """Refuse what gives no weights, or not from a Gram matrix, or remembers what cannot be saved."""
    try:
        from torchjd import Stateful
        from torchjd.aggregation import Weighting
    except ImportError as error:
        raise ImportError(f"aggregator=torchjd needs more packages: pip install 'mhrl[balancing]' ({error})") from error
    kind = type(weighting).__name__
    if not isinstance(weighting, Weighting):
        raise ValueError(
            f"weighting is {kind}, which is none of torchjd's weightings: one that gives weights for a Gram matrix is "
            "expected, such as DualProjWeighting"
        )
    for module in weighting.modules():
        kind = type(module).__name__
        if kind in UNFIT:
            raise ValueError(f"weighting is {kind}: {UNFIT[kind]}")
        if isinstance(module, Stateful) and kind not in MEMORY:
            raise ValueError(f"weighting is {kind}: it remembers what cannot be saved in a checkpoint")


def _title(weighting: nn.Module) -> str:
    """`DualProj`; of one that wraps another both: `CRMOGM(DualProj)`."""
    name = type(weighting).__name__.removesuffix("Weighting")
    return f"{name}({_title(weighting.get_submodule('weighting'))})" if name == "CRMOGM" else name


def _copy(value: Any) -> Any:  # noqa: ANN401
    return value.clone() if isinstance(value, Tensor) else value
