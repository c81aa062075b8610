"""Real Slurm: jobs that `sbatch` starts, and that are started again, train as one device does."""

import os
import pathlib
import sys
import time

import pytest

from tests.integrations import slurm as cluster
from tests.integrations.trained import DIGITS, ROOT, SECONDS, assert_equal, variables, weights

ALLOCATION = ROOT / "examples" / "slurm" / "elastic_allocation.sh"

pytestmark = pytest.mark.skipif(cluster.why_not() is not None, reason=str(cluster.why_not()))


@pytest.fixture(scope="module")
def slurm():
    """A cluster for this module."""
    with cluster.running() as found:
        yield found


def _log(folder, job):
    return (folder / f"{job}.log").read_text()


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_tasks_of_a_step_train_as_one_device(slurm, digits_on_one_device, tmp_path, tasks):
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} {DIGITS} {tmp_path}\n")
    job = slurm.submit(tmp_path, [str(script)], f"--ntasks={tasks}", **variables())
    assert slurm.ended(job, SECONDS) == "COMPLETED", _log(tmp_path, job)
    assert_equal(weights(tmp_path, tasks), digits_on_one_device)


def test_a_job_that_is_started_again_goes_on_from_its_backup(slurm, digits_on_one_device, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    programs = os.pathsep.join(
        [str(pathlib.Path(sys.executable).parent), slurm.environment["PATH"]]
    )
    command = [str(ALLOCATION), str(DIGITS), str(tmp_path), "--backup"]
    given = variables(PATH=programs, TFDIST_SECRET_FILE=str(secret))
    job = slurm.submit(tmp_path, command, "--nodes=1", "--cpus-per-task=1", **given)
    _until((tmp_path / "epoch-3").exists, lambda: _log(tmp_path, job))
    slurm.run("scancel", "--signal=TERM", job)  # what Slurm sends before the time is over
    _until(lambda: slurm.state(job)["Restarts"] == "1", lambda: _log(tmp_path, job))
    (tmp_path / "epoch-1").unlink()
    assert slurm.ended(job, SECONDS) == "COMPLETED", _log(tmp_path, job)
    assert not (tmp_path / "epoch-1").exists(), "training began anew"
    assert_equal(weights(tmp_path, 2), digits_on_one_device)


def _until(is_so, told):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError(told())
