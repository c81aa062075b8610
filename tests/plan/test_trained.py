"""What is recommended has been trained with, and the losses are those of the docs."""

import ast
import re

import pytest

import tfdist
from benchmarks.local_sgd.choices import CHOICES
from tests.docs import sources
from tfdist import compression
from tfdist.compression.choice import Choice
from tfdist.local.choices import DiLoCo, LocalSGD
from tfdist.options import Options
from tfdist.plan import candidates, decisions, trained
from tfdist.plan.candidate import Candidate
from tfdist.plan.machine import Costs, Machines, link_of
from tfdist.plan.prediction import Prediction
from tfdist.plan.table import Epoch, as_data, as_text

KINDS = {"LocalSGD": LocalSGD, "DiLoCo": DiLoCo}
MACHINES = Machines(link_of(1e8, 5e-5), costs=Costs())


def measured():
    """The losses of the page, by local steps and compressor; not after synchronous updates."""
    page = (sources.DOCS / "local_steps.md").read_text()
    found = {}
    for choice in CHOICES.values():
        if choice.local is None or "after" in choice.local:
            continue
        title = re.escape(choice.title)
        (loss,) = re.findall(rf"^\| char_lm \| {title} \|.*\| ([\d.]+) \|$", page, re.M)
        local = {**choice.local}
        code = None if choice.compression is None else compression.get(choice.compression)
        found[KINDS[local.pop("name")](**local), Choice.of(code)] = float(loss)
    return found


def test_losses_are_those_of_the_docs():
    mine = {(local, Choice.of(code)): loss for (local, code), loss in trained.LOSSES.items()}
    assert mine == measured()


def compared(workers=4):
    return candidates.candidates(workers, MACHINES)


def test_all_local_steps_that_were_measured_are_compared():
    found = {(c.local, c.compression) for c in compared() if c.local is not None}
    assert found == {*trained.LOSSES, (LocalSGD(8), None)}
    assert all(trained.loss(c) is not None for c in compared() if c.local is not None)
    assert trained.loss(Candidate("horovod", local=LocalSGD(8))) == 1.019
    assert trained.loss(Candidate("horovod", "fp16", LocalSGD(8))) is None
    assert trained.loss(Candidate("horovod")) is None


@pytest.mark.parametrize("strategy", ["multi_worker", "horovod"])
def test_what_trained_badly_is_shown_and_not_recommended(strategy):
    good, bad = [], []
    for candidate in compared():
        if candidate.strategy == strategy and candidate.local is not None:
            (good if trained.is_good(candidate) else bad).append(candidate)
    assert {type(c.local) for c in good} == {LocalSGD, DiLoCo} and len(good) == 9
    assert all("powersgd" == c.compression or isinstance(c.local, DiLoCo) for c in bad)
    assert not trained.is_good(Candidate(strategy, "int8", LocalSGD(32)))

    def in_seconds(candidate, step):
        return Prediction(candidate, 4, 64, step, 1 / step, 1e6, 1e6, 4)

    exact = in_seconds(Candidate(strategy), 1.0)
    fast = [in_seconds(candidate, 1e-3) for candidate in bad]
    assert candidates.best([exact, *fast]) == exact
    assert candidates.best([exact, *fast, in_seconds(good[0], 0.1)]).candidate == good[0]


def test_the_loss_is_beside_the_choice():
    code = compression.QSGD(7, norm="max", error_feedback=True)
    candidate = Candidate("horovod", code, LocalSGD(64))
    prediction = Prediction(candidate, 4, 64, 0.5, 1.0, 1e6, 1e6, 4, accumulated=3)
    line = as_text([prediction], Epoch(None, None))[1]
    assert "no, loss × 1.021" in line and "compression=QSGD(" in line and "tfdist." not in line
    (data,) = as_data([prediction], Epoch(None, None))
    assert (data["measured_loss"], data["accumulation_steps"]) == (1.021, 3)


def test_the_reason_names_the_loss():
    alone = Prediction(Candidate("one device"), 1, 64, 1.0, 1.0, 0.0, 1e6, 1)
    local = Prediction(Candidate("horovod", local=LocalSGD(32)), 4, 64, 1.0, 1.0, 1e6, 1e6, 4)
    reason = candidates.recommend(alone, [local], 0.5).reason
    assert "may need more steps: a small character model came to 1.019 times the loss" in reason


def test_coded_gradients_and_weights_of_parameter_servers_are_not_recommended():
    servers = [c for c in compared() if c.has_servers]
    assert {c.pull_compression for c in servers} == {None, "bf16", "int8"}
    assert {c.compression for c in servers} == {None, *candidates.COMPRESSION}
    good = [c for c in servers if trained.is_good(c)]
    assert [(c.synchronous, c.is_exact) for c in good] == [(True, True), (False, False)]
    assert [candidates.is_short(c) for c in servers] == [c in good for c in servers]


CODES = [
    decision.code
    for decision in decisions.DECISIONS
    if decision.code.startswith("tfdist.Strategy(") and "..." not in decision.code
]


@pytest.mark.parametrize("code", CODES)
def test_the_options_of_the_decisions_go_together(code):
    (call,) = ast.parse(code).body
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.value.keywords}
    given = {name: eval(text, {"tfdist": tfdist}) for name, text in options.items()}
    given.pop("staleness", None)  # a policy of its own
    Options(**given)
