import io
import sys
from functools import partial

import pytest
import torch
from _properties import PROMISES, Model, close, matrices
from torch import nn
from torchjd import aggregation
from torchjd.aggregation import (
    CRMOGMWeighting,
    DualProjWeighting,
    GradVacWeighting,
    IMTLGWeighting,
    MeanWeighting,
    PCDWeighting,
    PCGradWeighting,
    UPGradWeighting,
)

from mhrl import builder
from mhrl.aggregators import TorchJD
from mhrl.checkpoint import is_trusted
from mhrl.config import ConfigError

REMEMBERING = {
    "gradvac": GradVacWeighting,
    "pcd": PCDWeighting,
    "crmogm": lambda: CRMOGMWeighting(PCGradWeighting()),
    "crmogm(gradvac)": lambda: CRMOGMWeighting(GradVacWeighting()),
}
"""Weightings with a memory, some of which draw at random, too."""


@pytest.mark.parametrize("weighting", [DualProjWeighting, PCGradWeighting])
@pytest.mark.parametrize("promise", PROMISES)
def test_it_keeps_its_promises(promise, weighting):
    promise(lambda **options: TorchJD(weighting(), **options))


@pytest.mark.parametrize(
    ("weighting", "aggregator"),
    [
        (DualProjWeighting, aggregation.DualProj),
        (IMTLGWeighting, aggregation.IMTLG),
        (UPGradWeighting, aggregation.UPGrad),
        (MeanWeighting, aggregation.Mean),
        (partial(aggregation.KrumWeighting, 1), partial(aggregation.Krum, 1)),
    ],
)
def test_its_direction_is_that_of_torchjds_aggregator(weighting, aggregator):
    for rows in matrices(8):
        close(TorchJD(weighting()).combine(rows), aggregator()(rows), 1e-9)


def test_rows_too_short_for_torchjd_are_not_taken_for_zero():
    """torchjd's UPGrad becomes the mean where the squared norm of all rows is below 1e-4."""
    rows = torch.tensor([[-4.0, 1, 1], [6, 1, 1]], dtype=torch.float64)
    right = torch.tensor([0.2929, 1.9004, 1.9004], dtype=torch.float64)
    close(TorchJD(UPGradWeighting()).combine(1e-6 * rows) / 1e-6, right, 1e-3)


def test_the_label_names_the_weighting():
    assert TorchJD(DualProjWeighting()).label == "torchjd.DualProj@features"
    shared = Model().trunk.parameters()
    nested = TorchJD(CRMOGMWeighting(UPGradWeighting()), level="params", shared=shared)
    assert nested.label == "torchjd.CRMOGM(UPGrad)@params"


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        (aggregation.ExcessMTLWeighting, r"weighting is ExcessMTLWeighting: it adds up the squares of all numbers"),
        (aggregation.MoDoWeighting, r"weighting is MoDoWeighting: it needs .* two independent batches"),
        (aggregation.SDMGradWeighting, r"weighting is SDMGradWeighting: it needs .* two independent batches"),
        (lambda: CRMOGMWeighting(aggregation.MoDoWeighting()), r"weighting is MoDoWeighting"),
        (aggregation.UPGrad, r"weighting is UPGrad, which is none of torchjd's weightings: .* DualProjWeighting"),
        (aggregation.ConFIG, r"weighting is ConFIG, which is none of"),
        (lambda: nn.Linear(2, 2), r"weighting is Linear, which"),
    ],
)
def test_what_gives_no_weights_by_the_gram_matrix_is_refused_by_name(weighting, message):
    with pytest.raises(ValueError, match=message):
        TorchJD(weighting())


def test_a_memory_that_cannot_be_saved_is_refused():
    class Strange(GradVacWeighting):
        """It could remember anything."""

    with pytest.raises(ValueError, match=r"weighting is Strange: it remembers what cannot be saved"):
        TorchJD(Strange())


def test_without_torchjd_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ImportError, match=r"aggregator=torchjd needs more packages: pip install 'mhrl\[balancing\]'"):
        TorchJD(nn.Linear(2, 2))


@pytest.mark.parametrize("refresh", [1, 2])
@pytest.mark.parametrize("kind", REMEMBERING)
def test_what_a_weighting_remembers_is_in_the_state(kind, refresh):
    """Resumed after each of the first passes, in which rows come and go, and between which statistics are taken."""

    def run(aggregator, model, steps):
        for step in steps:
            model.x = model.x.roll(1, 0) * (1 + 0.1 * step)
            names = "abc" if step % 3 else "ab"
            aggregator.backward(model.losses(aggregator, rows=list(names), vanish="a" if step == 4 else ""))
            yield model.trunk_gradient()

    def build():
        return TorchJD(REMEMBERING[kind](), refresh=refresh)

    model = Model()
    torch.manual_seed(7)
    whole = list(run(build(), model, range(8)))
    for stop in range(1, 6):
        model, before = Model(), build()
        torch.manual_seed(7)
        found = list(run(before, model, range(stop)))
        file = io.BytesIO()
        torch.save({"aggregator": before.state_dict(), "rng": torch.get_rng_state()}, file)
        rows = model.jacobian("features", dict.fromkeys("abc", 1.0))
        before.statistics(rows, ("a", "b", "c"), ())
        torch.set_rng_state(torch.load(io.BytesIO(file.getvalue()), weights_only=True)["rng"])
        straight_on = list(run(before, model, range(stop, 8)))
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        model, after = Model(), build()
        for step in range(stop):
            model.x = model.x.roll(1, 0) * (1 + 0.1 * step)
        after.load_state_dict(state["aggregator"])
        torch.set_rng_state(state["rng"])
        resumed = list(run(after, model, range(stop, 8)))
        assert all(torch.equal(a, b) for a, b in zip(found + straight_on, whole, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(found + resumed, whole, strict=True))


@pytest.mark.parametrize("kind", REMEMBERING)
def test_each_set_of_rows_has_a_memory_of_its_own(kind):
    """As if each had a weighting of its own; those are torchjd's, without anything around them."""
    both, own = TorchJD(REMEMBERING[kind]()), {"abc": REMEMBERING[kind](), "ab": REMEMBERING[kind]()}
    for step, three in enumerate(matrices(3, columns=4, count=4)):
        for names, weighting in own.items():
            rows = three[: len(names)]
            gram = rows @ rows.T
            torch.manual_seed(step)
            right = weighting(gram / gram.trace())
            torch.manual_seed(step)
            close(both.weigh(gram, names), right, 1e-9)
    padded = torch.zeros(3, 3, dtype=torch.float64)
    padded[:2, :2] = gram
    torch.manual_seed(9)
    right = own["ab"](gram / gram.trace())
    torch.manual_seed(9)
    close(both.weigh(padded, "abc"), torch.cat([right, torch.zeros(1, dtype=torch.float64)]), 1e-9)


def test_what_is_not_finite_is_not_remembered():
    rule = TorchJD(GradVacWeighting())
    gram = torch.eye(2, dtype=torch.float64)
    gram[0, 1] = torch.nan
    assert rule.weigh(gram, "ab").isnan().all()
    assert rule.get_extra_state()["memory"] == {}


CONFIG = {
    "losses": {"a": {"weight": 1.0, "trunk_grad": 1.0}},
    "heads": {},
    "aggregator": {
        "_target_": "mhrl.aggregators.TorchJD",
        "weighting": {"_target_": "torchjd.aggregation.KrumWeighting", "n_byzantine": 1},
        "level": "params",
    },
}


def test_the_weighting_is_named_in_the_config():
    aggregator = builder.build_aggregator(CONFIG, (), nn.Linear(2, 2))
    assert aggregator.label == "torchjd.Krum@params"


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ({"_target_": "torchjd.aggregation.KrumWeighting"}, r"aggregator.weighting.n_byzantine is missing: a whole"),
        (
            {"_target_": "torchjd.aggregation.KrumWeighting", "n_byzantine": 1, "select": 2},
            r"unknown key aggregator.weighting.select: did you mean n_selected",
        ),
        ({"_target_": "torchjd.aggregation.KrumWeights"}, r"aggregator.weighting._target_=.*KrumWeights cannot be imp"),
        ({"_target_": "torchjd.aggregation.MoDoWeighting"}, r"aggregator: weighting is MoDoWeighting: it needs"),
        ("DualProj", r"aggregator: weighting is str, which"),
    ],
)
def test_a_weighting_that_cannot_be_is_refused_by_its_key(weighting, message):
    config = {**CONFIG, "aggregator": {**CONFIG["aggregator"], "weighting": weighting}}
    with pytest.raises(ConfigError, match=message):
        builder.build_aggregator(config, (), nn.Linear(2, 2))


def test_a_checkpoint_may_name_a_weighting():
    assert is_trusted("torchjd.aggregation.DualProjWeighting") and is_trusted("mhrl.aggregators.TorchJD")
