import pytest
import torch
from tensordict import TensorDict

from mhrl.objectives import Objective


def test_rows_are_those_of_the_active_losses_in_order_and_once(make_toy):
    class Shared(make_toy):
        @property
        def row_of(self):
            return {"a": "both", "b": "both", "c": "c"}

    objective = Shared(heads={"a": 1, "b": 1, "c": 1})
    assert objective.rows(["a", "b", "c"]) == ("both", "c")
    assert objective.rows(["c", "b"]) == ("c", "both")
    assert objective.rows([]) == ()


def test_a_rollout_enters_replay_as_it_is(make_toy):
    rollout = TensorDict({"x": torch.ones(2, 3)}, [2, 3])
    assert make_toy().process_rollout(rollout) is rollout


def test_it_is_abstract():
    with pytest.raises(TypeError, match=r"abstract"):
        Objective(None)
