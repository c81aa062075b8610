"""Loops of TensorFlow's tutorial on parameter servers: no update and no count is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parameter_server.stock_scenarios import MANY, OPTIMIZERS, STEPS, one_device

ROOT = Path(__file__).parents[2]
# One process of pytest-xdist has the job.
shares_job = pytest.mark.xdist_group("parameter_server")


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
@shares_job
@pytest.mark.scenario("stock_partitioned")
def test_a_loop_with_partitioned_variables_equals_one_device(found, name):
    ours, theirs = found["found"][name], one_device(OPTIMIZERS[name]())
    assert ours["parts"] == 2
    assert ours["iterations"] == theirs["iterations"] == STEPS
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
    assert len(ours["weights"]) == 3
    for one, other in zip(ours["weights"], theirs["weights"]):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.full
@shares_job
@pytest.mark.scenario("stock_partitioned")
def test_a_loop_refuses_optimizers_that_need_whole_variables(found):
    assert set(found["refused"]) == {"adafactor", "lamb"}
    for error in found["refused"].values():
        assert "Partitioned variables are updated part by part" in error


@shares_job
@pytest.mark.scenario("stock_many")
def test_workers_that_update_at_the_same_time_lose_nothing(found):
    assert found["weights"] == [[-MANY * 2.0**-7]] * 2
    assert found["iterations"] == MANY
    assert found["count"] == 3 * MANY
    assert found["total"] == 5 * MANY
    assert found["truth"] == MANY
    assert found["matrix"] == [[0.0, 0.0], [0.0, MANY]]


@pytest.mark.full
def test_the_tutorial_runs_with_one_line_changed(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "tests.parameter_server.tutorial", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert "AutoGraph could not be applied" not in finished.stderr
    facts = json.loads((tmp_path / "facts").read_text())
    files = ["ckpt_1.weights.h5", "ckpt_2.weights.h5"]
    assert facts["fit"] == {"iterations": 16, "files": files}
    loop = facts["loop"]
    assert loop["counts"] == [[8, 64.0], [16, 64.0]]
    assert 0 <= loop["loss"] < 10
    assert loop["restored"] == [True, True, True, 16]
    assert loop["evaluated"] == 40
    assert 0 <= loop["accuracy"] <= 1
    assert loop["parts"] == 2
