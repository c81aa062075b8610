"""The predictions of measured results: what the page says is what the code gives."""

import dataclasses
import statistics

import pytest

from benchmarks import plan_accuracy
from tests.docs import sources
from tfdist.plan.machine import CPU_COSTS

PAGE = (sources.DOCS / "planning.md").read_text()


def test_results_are_those_of_tfdist():
    rows = plan_accuracy.measured()
    assert len(rows) > 250
    assert {row.strategy for row in rows} == {"horovod", "multi_worker"}
    assert {row.hosts for row in rows} == {2, 3, 4}
    for cell in plan_accuracy.FITTED:
        assert sum(row.cell == cell for row in rows) >= 10


def test_more_hosts_than_cores_make_each_other_slower():
    slowdowns = {row.hosts: row.slowdown for row in plan_accuracy.measured() if row.work == "cnn"}
    assert 1 <= slowdowns[2] < 1.5 < slowdowns[3] < 3


def test_where_the_link_decides_the_prediction_is_close():
    rows = [
        row
        for row in plan_accuracy.measured()
        if row.rate == "100mbit" and row.work == "mlp" and row.compression is None
    ]
    assert len(rows) >= 8
    errors = [abs(plan_accuracy.predicted(row, CPU_COSTS) / row.seconds - 1) for row in rows]
    assert statistics.mean(errors) < 0.06 and max(errors) < 0.12


@pytest.mark.full
def test_the_page_has_what_the_code_predicts():
    texts, rows = plan_accuracy.sections()
    assert len(texts) == 3 and all(text in PAGE for text in texts.values())
    assert f"{rows}\n" == plan_accuracy.ROWS.read_text()


@pytest.mark.full
def test_most_predictions_are_close():
    constants, found = plan_accuracy.judged(plan_accuracy.measured())
    assert statistics.mean(one.error for one in found) <= plan_accuracy.GOAL_MEAN
    close = sum(one.error <= plan_accuracy.GOAL_WORST for one in found)
    assert close >= 0.98 * len(found)
    known = dataclasses.asdict(CPU_COSTS)
    for name, value in dataclasses.asdict(constants).items():
        assert value == pytest.approx(known[name], rel=0.02), name
