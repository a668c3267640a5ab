from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Optional, TypeVar

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Interval, Le, Lt, MinLen
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AllowInfNan, Field, PositiveInt

from mhrl.config import ConfigError, as_annotated, kind_of

INF, NAN = float("inf"), float("nan")
LISTS = (list[int], Sequence[int])


@pytest.mark.parametrize(
    ("value", "annotation", "right"),
    [
        (1e6, int, 1_000_000),
        (-3.0, int, -3),
        (2**62 + 1, int, 2**62 + 1),
        (1, float, 1.0),
        (0.1, float, 0.1),
        (INF, float, INF),
        (1.0, int | float, 1.0),
        (True, bool, True),
        ("5", str, "5"),
        ("", str, ""),
        (None, None, None),
        (None, int | None, None),
        (5.0, int | None, 5),
        (5, Optional[float], 5.0),  # noqa: UP045
        ("a", Literal["a", "b"], "a"),
        ([64.0, 32], list[int], [64, 32]),
        ([64, 32], Sequence[int], [64, 32]),
        ([], Sequence[int], []),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ([0.9, 1], tuple[float, float], (0.9, 1.0)),
        ([[1.0], []], list[list[int]], [[1], []]),
        ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        ({"a": [1, {}], "b": None}, dict[str, Any], {"a": [1, {}], "b": None}),
        (1, float | torch.Tensor, 1.0),
        ([1, 0.5], tuple[float | torch.Tensor, float | torch.Tensor], (1.0, 0.5)),
        (3.0, Annotated[int, Ge(1)] | None, 3),
    ],
)
def test_a_value_that_fits_takes_the_annotations_type(value, annotation, right):
    found = as_annotated(value, annotation, "key")
    assert found == right and type(found) is type(right)
    if isinstance(right, list | tuple):
        assert [type(entry) for entry in found] == [type(entry) for entry in right]


@pytest.mark.parametrize(
    ("annotation", "words", "bad"),
    [
        (int, "a whole number", [1.5, True, "5", "abc", None, [1], {}, INF, NAN]),
        (float, "a number", [True, "1.5", "abc", None, [1.0], {}]),
        (bool, "true or false", [0, 1, 1.0, "true", "maybe", None, []]),
        (str, "text", [5, 1.5, False, None, ["a"], {}]),
        (int | None, "a whole number or null", [1.5, "null", [None]]),
        (str | int, "text or a whole number", [None, 1.5, True, []]),
        (Literal["error", "skip"], "error or skip", ["eror", None, 1, ["error"]]),
        (Literal["relu", "tanh", None], "relu, tanh or null", ["", "Relu", 0]),
        (Literal["eager"], "eager", ["fast", True]),
        (Annotated[int, Ge(1)], "a whole number >= 1", [0, -1, 0.5, 1.5, NAN, INF, None, "5", True, [1]]),
        (Annotated[int, Ge(0), Lt(2**63)], f"a whole number >= 0 and < {2**63}", [-1, 2**63, 1e30]),
        (Annotated[float, Gt(0), Le(1)], "a number > 0 and <= 1", [0, 1.1, NAN, INF]),
        (Annotated[float, Ge(0), AllowInfNan(False)], "a number >= 0", [-0.1, INF, NAN]),
        (Annotated[int, Ge(1)] | None, "a whole number >= 1 or null", [0, "no"]),
        *(
            (list_, "a list of whole numbers", [64, "64", None, {"a": 1}, [1.5], ["a"], [None], [[1]]])
            for list_ in LISTS
        ),
        (Annotated[int, Interval(gt=0, lt=3)], "a whole number > 0 and < 3", [0, 3]),
        (Annotated[float, Field(ge=1, le=2)], "a number >= 1 and <= 2", [0.5, 3]),
        (PositiveInt, "a whole number > 0", [0, -1]),
        (Annotated[list[int], MinLen(1)], "a list of whole numbers of at least 1 entries", [[], 5]),
        (list[str], "a list of texts", ["text", [5]]),
        (tuple[float, ...], "a list of numbers", [0.5, ["a"]]),
        (tuple[float, float], "a list of 2 numbers", [0.9, [0.9], [1, 2, 3], "ab"]),
        (tuple[int, str], "a list of 2 entries (a whole number, text)", [[1, 2]]),
        (list[int | None], "a list of whole numbers or nulls", [None, ["a"]]),
        (list[list[int]], "a list of lists of whole numbers", [[1]]),
        (list[Literal["a", "b"]], "a list of a or b", [["c"], "a"]),
        (list, "a list", [5, "text", {}]),
        (list[np.ndarray], "a list", [5, "text", {}]),
        (dict[str, float], "a mapping to numbers", [5, [1], {"a": "b"}, None]),
        (Mapping, "a mapping of fields", [5, [1], None, "a"]),
        (float | torch.Tensor, "a number", ["abc", None, [1]]),
    ],
)
def test_e01_a_value_that_does_not_fit_is_refused_in_plain_words(annotation, words, bad):
    for value in bad:
        with pytest.raises(ConfigError) as error:
            as_annotated(value, annotation, "some.key")
        assert str(error.value) == f"some.key is {value!r}: {words} is expected"


@pytest.mark.parametrize(
    "annotation",
    [Any, object, np.ndarray, torch.Tensor, torch.Tensor | None, np.ndarray | None, Callable, "Unknown", TypeVar("T")],
)
@pytest.mark.parametrize("value", [1, 1.0, "text", [0.5], None, {"a": 1}])
def test_what_yaml_has_no_values_for_is_not_judged(annotation, value):
    assert kind_of(annotation) is None
    assert as_annotated(value, annotation, "key") is value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3),
)
BY_HAND = {
    int: lambda v: type(v) is int or (type(v) is float and v.is_integer()),
    float: lambda v: type(v) in (int, float),
    bool: lambda v: type(v) is bool,
    str: lambda v: type(v) is str,
    type(None): lambda v: v is None,
}


@given(value=VALUES, choices=st.lists(st.sampled_from(list(BY_HAND)), min_size=1, max_size=3, unique=True))
def test_a_union_takes_exactly_what_one_of_its_members_takes(value, choices):
    annotation = choices[0]
    for choice in choices[1:]:
        annotation = annotation | choice
    if any(BY_HAND[choice](value) for choice in choices):
        assert as_annotated(value, annotation, "key") == value
    else:
        with pytest.raises(ConfigError):
            as_annotated(value, annotation, "key")


@given(value=VALUES)
def test_plain_values_pass_through_a_mapping_of_anything_bit_for_bit(value):
    assert repr(as_annotated({"a": value}, dict[str, Any], "key")) == repr({"a": value})
