"""The predictions of measured results: what the page says is what the code gives."""

import dataclasses
import statistics

import pytest

from benchmarks import plan_accuracy
from tests.docs import sources
from tfdist.plan.machine import CPU_COSTS

PAGE = (sources.DOCS / "planning.md").read_text()


def test_results_are_those_of_one_machine_and_of_tfdist():
    rows = plan_accuracy.measured()
    assert len(rows) > 130
    assert {row.strategy for row in rows} == {"horovod", "multi_worker"}
    assert {row.hosts for row in rows} == {2, 3, 4}
    for cell in plan_accuracy.FITTED:
        assert sum(row.cell == cell for row in rows) >= 10


def test_a_device_is_known_from_a_batch_and_from_half_of_it():
    rows = [row for row in plan_accuracy.measured() if row.plan == "scaling"]
    steps = {row.batch: row.device.step for row in rows}
    assert steps[64] - steps[32] == pytest.approx(2 * (steps[32] - steps[16]))


def test_where_the_link_decides_the_prediction_is_close():
    constants = plan_accuracy.Constants()
    rows = [
        row
        for row in plan_accuracy.measured()
        if row.rate == "100mbit" and row.work == "mlp" and row.compression is None
    ]
    assert len(rows) > 10
    errors = [abs(plan_accuracy.predicted(row, constants) / row.seconds - 1) for row in rows]
    assert statistics.mean(errors) < 0.06 and max(errors) < 0.12


@pytest.mark.full
def test_the_page_has_what_the_code_predicts():
    constants, found = plan_accuracy.judged()
    assert plan_accuracy.summary(constants, found) in PAGE
    assert f"{plan_accuracy.every_row(found)}\n" == plan_accuracy.ROWS.read_text()
    assert statistics.mean(one.error for one in found) < 0.15
    for name in ("horovod", "tensorflow", "residual", "early"):
        known = getattr(CPU_COSTS, name)
        assert dataclasses.asdict(constants)[name] == pytest.approx(known, rel=0.02), name
    assert CPU_COSTS.halves == plan_accuracy.HALVES
