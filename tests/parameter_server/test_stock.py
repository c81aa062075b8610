"""Loops of TensorFlow's tutorial on parameter servers: no update and no count is lost."""

import numpy as np
import pytest

from tests.parameter_server.stock_scenarios import MANY, OPTIMIZERS, STEPS, one_device


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.scenario("stock_partitioned")
def test_a_loop_with_partitioned_variables_equals_one_device(found, name):
    ours, theirs = found["found"][name], one_device(OPTIMIZERS[name]())
    assert ours["parts"] == 2
    assert ours["iterations"] == theirs["iterations"] == STEPS
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
    assert len(ours["weights"]) == 3
    for one, other in zip(ours["weights"], theirs["weights"]):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.scenario("stock_partitioned")
def test_a_loop_refuses_optimizers_that_need_whole_variables(found):
    assert set(found["refused"]) == {"adafactor", "lamb"}
    for error in found["refused"].values():
        assert "Partitioned variables are updated part by part" in error


@pytest.mark.scenario("stock_many")
def test_workers_that_update_at_the_same_time_lose_nothing(found):
    assert found["weights"] == [[-MANY * 2.0**-7]] * 2
    assert found["iterations"] == MANY
    assert found["count"] == 2 * MANY
    assert found["total"] == 3 * MANY
    assert found["truth"] == MANY
    assert found["matrix"] == [[0.0, 0.0], [0.0, MANY]]
