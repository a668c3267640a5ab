import functools
import sys
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from gymnasium.utils import EzPickle

from mhrl.config import ConfigError, check_arguments

HERE = __name__


class Base:
    def __init__(self, size: int, rate: float = 0.1, label: str = None):  # noqa: RUF013
        self.size, self.rate, self.label = size, rate, label


class Passes(Base):
    def __init__(self, depth: int = 1, **rest):
        super().__init__(2, **rest)
        self.depth = depth


class PassesAgain(Passes):
    def __init__(self, *args, flag: bool = False, **rest):
        super().__init__(*args, **rest)


class Overrides(Base):
    def __init__(self, size: str, **rest):
        super().__init__(len(size), **rest)


class Keeps:
    def __init__(self, size: int, **rest):
        self.rest = rest


class KeepsToo(EzPickle):
    def __init__(self, size: int, **rest):
        EzPickle.__init__(self, size, **rest)


class Inherits(Base):
    pass


class Unseen:
    """Annotations that only type checkers see, as in modules with annotations from the future."""

    def __init__(self, size: "int", space: "OnlyForTypeCheckers", sizes: "list[Nowhere]" = ()):  # noqa: F821
        pass


class Pair(NamedTuple):
    first: int
    second: float = 0.0


@dataclass
class Fields:
    first: int
    second: tuple[int, ...] = ()


class Outer:
    def __init__(self, inner: Base, others: list[Base] = (), table: dict[str, Base] = None):  # noqa: RUF013
        self.inner = inner


def function(widths: list[int], anything=None, *, only_named: bool = False):
    """A target of a signature that is spelt out."""


def takes_all(width: int, **others):
    """A target that takes anything."""


def decorated(*args, **kwargs):
    """A target whose signature is another's."""


functools.update_wrapper(decorated, function)
not_callable = 5


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setitem(sys.modules, HERE, sys.modules.get(HERE, sys.modules[test_checked.__module__]))


def checked(target, given, **options):
    return check_arguments({"_target_": f"{HERE}.{target}", **given}, "node", **options)


def test_checked():
    assert checked("Base", {"size": 3.0}) == {"_target_": f"{HERE}.Base", "size": 3}


@pytest.mark.parametrize(
    ("target", "given", "right"),
    [
        ("function", {"widths": [64.0]}, {"widths": [64]}),
        ("function", {"widths": [], "anything": {"a": 1.0}}, {"widths": [], "anything": {"a": 1.0}}),
        ("decorated", {"widths": [1], "only_named": True}, {"widths": [1], "only_named": True}),
        ("takes_all", {"width": 1e3, "more": "x"}, {"width": 1000, "more": "x"}),
        ("Base", {"size": 1, "label": None}, {"size": 1, "label": None}),
        ("Inherits", {"size": 1.0}, {"size": 1}),
        ("Passes", {"rate": 1, "depth": 2.0}, {"rate": 1.0, "depth": 2}),
        ("PassesAgain", {"rate": 1, "depth": 2.0, "flag": True}, {"rate": 1.0, "depth": 2, "flag": True}),
        ("Overrides", {"size": "abc"}, {"size": "abc"}),
        ("Keeps", {"size": 1, "own": 1}, {"size": 1, "own": 1}),
        ("KeepsToo", {"size": 1, "own": 1}, {"size": 1, "own": 1}),
        ("Unseen", {"size": 2.0, "space": 5, "sizes": "x"}, {"size": 2, "space": 5, "sizes": "x"}),
        ("Pair", {"first": 1.0, "second": 1}, {"first": 1, "second": 1.0}),
        ("Fields", {"first": 1, "second": [2.0]}, {"first": 1, "second": (2,)}),
    ],
)
def test_arguments_that_fit_take_the_annotations_type(target, given, right):
    found = checked(target, given)
    assert found == {"_target_": f"{HERE}.{target}", **right}
    assert {name: type(value) for name, value in found.items() if name != "_target_"} == {
        name: type(value) for name, value in right.items()
    }


@pytest.mark.parametrize(
    ("target", "given", "message"),
    [
        ("function", {"widhts": [1]}, "unknown key node.widhts: did you mean widths?"),
        ("function", {"widths": 64}, "node.widths is 64: a list of whole numbers is expected"),
        ("function", {}, "node.widths is missing: a list of whole numbers is expected"),
        ("function", {"widths": [1], "_args_": [1]}, "unknown key node._args_"),
        ("function", {"widths": [1], "only_named": 1}, "node.only_named is 1: true or false is expected"),
        ("decorated", {"widhts": [1]}, "unknown key node.widhts: did you mean widths?"),
        ("takes_all", {"width": "abc", "more": 1}, "node.width is 'abc': a whole number is expected"),
        ("Base", {}, "node.size is missing: a whole number is expected"),
        ("Base", {"size": True}, "node.size is True: a whole number is expected"),
        ("Base", {"size": None}, "node.size is None: a whole number is expected"),
        ("Base", {"size": 1, "label": 5}, "node.label is 5: text or null is expected"),
        ("Base", {"self": 1}, "unknown key node.self"),
        ("Inherits", {"sise": 1}, "unknown key node.sise: did you mean size?"),
        ("Passes", {"rtae": 1}, "unknown key node.rtae: did you mean rate?"),
        ("Passes", {"rate": "fast"}, "node.rate is 'fast': a number is expected"),
        ("PassesAgain", {"rest": 1}, "unknown key node.rest"),
        ("PassesAgain", {"dept": 1}, "unknown key node.dept: did you mean depth?"),
        ("Overrides", {"size": 5}, "node.size is 5: text is expected"),
        ("Keeps", {"size": "abc"}, "node.size is 'abc': a whole number is expected"),
        ("Unseen", {"size": "abc", "space": 5}, "node.size is 'abc': a whole number is expected"),
        ("Unseen", {"size": 1}, "node.space is missing"),
        ("Pair", {"frist": 1}, "unknown key node.frist: did you mean first?"),
        ("Fields", {"first": 1, "second": 2}, "node.second is 2: a list of whole numbers is expected"),
    ],
)
def test_e01_arguments_that_do_not_fit_are_refused_by_key(target, given, message):
    with pytest.raises(ConfigError) as error:
        checked(target, given)
    assert str(error.value).startswith(message)


def test_what_is_injected_need_not_and_cannot_be_configured():
    assert checked("Base", {"rate": 1}, injected=("size",))["rate"] == 1.0
    with pytest.raises(ConfigError, match=r"unknown key node.size: choose from label, rate$"):
        checked("Base", {"size": 1}, injected=("size",))


def test_further_fields_are_valid_suggested_and_judged():
    also = {"clip_norm": float}
    assert checked("Base", {"size": 1, "clip_norm": 1}, also=also)["clip_norm"] == 1.0
    with pytest.raises(ConfigError, match=r"unknown key node.clip_nrm: did you mean clip_norm\?"):
        checked("Base", {"size": 1, "clip_nrm": 1}, also=also)
    with pytest.raises(ConfigError, match=r"node.clip_norm is 'abc': a number is expected"):
        checked("Base", {"size": 1, "clip_norm": "abc"}, also=also)


def node(target, **given):
    return {"_target_": f"{HERE}.{target}", **given}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inner": node("Base", sise=1)}, r"unknown key node.inner.sise: did you mean size\?"),
        ({"inner": node("Base", size="x")}, r"node.inner.size is 'x': a whole number is expected"),
        ({"inner": node("Base")}, r"node.inner.size is missing"),
        ({"inner": node("Bsae", size=1)}, r"node.inner._target_=.*Bsae cannot be imported"),
        ({"inner": node("Outer", inner=node("Base", sise=1))}, r"unknown key node.inner.inner.sise"),
        ({"inner": node("Base", size=1), "others": [node("Base", size="x")]}, r"node.others.0.size is 'x'"),
        ({"inner": node("Base", size=1), "table": {"a": node("Base", sise=1)}}, r"unknown key node.table.a.sise"),
        ({"iner": node("Base", size=1)}, r"unknown key node.iner: did you mean inner\?"),
    ],
)
def test_nested_nodes_are_checked_against_their_own_targets(given, message):
    with pytest.raises(ConfigError, match=message):
        checked("Outer", given)


def test_nested_nodes_that_fit_pass_and_take_the_annotations_type():
    given = {
        "inner": node("Base", size=1.0),
        "others": [node("Base", size=1, rate=2)],
        "table": {"a": node("Inherits", size=1)},
    }
    found = checked("Outer", given)
    assert type(found["inner"]["size"]) is int and type(found["others"][0]["rate"]) is float
    assert found["table"] == {"a": {"_target_": f"{HERE}.Inherits", "size": 1}}
    partial = node("Base", rate=1, _partial_=True)
    assert checked("Outer", {"inner": partial})["inner"] == {**partial, "rate": 1.0}
    assert checked("Outer", {"inner": node("Base", _args_=[1])})["inner"]["_args_"] == [1]


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "LBFGS"])
def test_optimizers_of_torch_are_checked(name):
    given = {"_target_": f"torch.optim.{name}", "lr": 1}
    assert check_arguments(given, "optimizer", injected=("params",))["lr"] == 1.0
    with pytest.raises(ConfigError, match=r"optimizer.lr is 'fast': a number is expected"):
        check_arguments({**given, "lr": "fast"}, "optimizer", injected=("params",))
    with pytest.raises(ConfigError, match=r"unknown key optimizer.lrr: did you mean lr\?"):
        check_arguments({**given, "lrr": 1}, "optimizer", injected=("params",))
    parameter = torch.nn.Parameter(torch.zeros(1))
    assert getattr(torch.optim, name)([parameter], lr=1.0).param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize("betas", [0.9, [0.9], [0.9, "a"], "ab", None, [0.9, 0.99, 0.999]])
def test_betas_are_two_numbers(betas):
    with pytest.raises(ConfigError, match=r"optimizer.betas is .*: a list of 2 numbers is expected"):
        check_arguments({"_target_": "torch.optim.Adam", "betas": betas}, "optimizer", injected=("params",))


@pytest.mark.parametrize("target", ["no.such.Thing", "mhrl.objectives.Nope", "", None, 5])
def test_a_target_that_cannot_be_imported_is_named(target):
    with pytest.raises(ConfigError, match=rf"objective._target_={target} cannot be imported"):
        check_arguments({"_target_": target}, "objective")


@pytest.mark.parametrize("target", ["mhrl.objectives", f"{HERE}.not_callable"])
def test_a_target_that_cannot_be_called_is_refused(target):
    with pytest.raises(ConfigError, match=rf"objective._target_ is '{target}': a class or function is expected"):
        check_arguments({"_target_": target}, "objective")


def test_a_node_without_target_is_refused():
    with pytest.raises(ConfigError, match=r"trunk has no _target_"):
        check_arguments({"widths": [1]}, "trunk")


def test_a_target_without_a_signature_takes_all():
    assert check_arguments({"_target_": "builtins.dict", "a": 1}, "node")["a"] == 1
