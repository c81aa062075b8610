"""Real Slurm: jobs that `sbatch` starts, and that are started again, train as one device does."""

import json
import os
import pathlib
import sys
import time

import pytest

from tests.integrations import slurm as cluster
from tests.integrations.trained import DIGITS, ROOT, SECONDS, assert_equal, variables, weights

ALLOCATION = ROOT / "examples" / "slurm" / "elastic_allocation.sh"
ARRAY = ALLOCATION.with_name("elastic_array.sh")

pytestmark = [
    pytest.mark.skipif(cluster.why_not() is not None, reason=str(cluster.why_not())),
    pytest.mark.xdist_group("slurm"),  # the scripts of the examples serve at one port
]


@pytest.fixture(scope="module")
def slurm():
    """A cluster for this module."""
    with cluster.running() as found:
        yield found


@pytest.fixture
def for_launchers(slurm, tmp_path):
    """The environment of a job that calls `tfdist run`."""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    programs = os.pathsep.join(
        [str(pathlib.Path(sys.executable).parent), slurm.environment["PATH"]]
    )
    return variables(PATH=programs, TFDIST_SECRET_FILE=str(secret))


def _logs(folder):
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_tasks_of_a_step_train_as_one_device(slurm, digits_on_one_device, tmp_path, tasks):
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} {DIGITS} {tmp_path}\n")
    job = slurm.submit(tmp_path, [str(script)], f"--ntasks={tasks}", **variables())
    assert slurm.ended(job, SECONDS) == "COMPLETED", _logs(tmp_path)
    assert_equal(weights(tmp_path, tasks), digits_on_one_device)


def test_srun_starts_the_test_of_a_cluster(slurm, tmp_path):
    found = tmp_path / "cluster.json"
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} -m tfdist test --json {found}\n")
    job = slurm.submit(tmp_path, [str(script)], "--ntasks=2", **variables())
    state = slurm.ended(job, SECONDS)
    page = json.loads(found.read_text())
    assert state == ("FAILED" if page["problems"] else "COMPLETED"), _logs(tmp_path)
    assert page["ranks"] == 2
    assert [row["difference"] <= row["tolerance"] for row in page["equality"]] == [True] * 8


@pytest.mark.parametrize("signal", ["--signal=TERM", None])
def test_a_job_that_is_started_again_goes_on_from_its_backup(
    slurm, digits_on_one_device, tmp_path, for_launchers, signal
):
    """After SIGTERM, before the time is over, its script requeues it; after `scancel` a user."""
    command = [str(ALLOCATION), str(DIGITS), str(tmp_path), "--backup"]
    job = slurm.submit(tmp_path, command, "--nodes=1", "--cpus-per-task=1", **for_launchers)
    _until((tmp_path / "epoch-3").exists, lambda: _logs(tmp_path))
    if signal:
        slurm.run("scancel", signal, job)
    else:
        slurm.run("scancel", job)
        assert slurm.ended(job, SECONDS) == "CANCELLED", _logs(tmp_path)
        slurm.run("scontrol", "requeue", job)
    _until(lambda: slurm.state(job)["Restarts"] == "1", lambda: _logs(tmp_path))
    (tmp_path / "epoch-1").unlink()
    assert slurm.ended(job, SECONDS) == "COMPLETED", _logs(tmp_path)
    assert not (tmp_path / "epoch-1").exists(), "training began anew"
    assert_equal(weights(tmp_path, 2), digits_on_one_device)


@pytest.mark.parametrize("comes_again", [True, False])
def test_an_array_from_which_a_machine_is_taken_trains_as_one_device(
    slurm, digits_on_one_device, tmp_path, for_launchers, comes_again
):
    """Two tasks with two ranks each; those that come again train in the last two epochs."""
    all_are_there, is_taken, are_back = "1:rank-1-0-*:4", "3:taken:1", "4:rank-4-1-*:2"
    awaited = [all_are_there, is_taken, *([are_back] if comes_again else [])]
    awaits = [f"--awaits={one}" for one in awaited]
    command = [str(ARRAY), str(DIGITS), str(tmp_path), *awaits]
    options = ("--array=0-1", "--cpus-per-task=1")
    job = slurm.submit(tmp_path, command, *options, **for_launchers)
    host, taken = f"{job}_0", f"{job}_1"
    _until(lambda: len([*tmp_path.glob("rank-1-*")]) == 4, lambda: _logs(tmp_path))
    if comes_again:
        slurm.run("scancel", "--batch", "--signal=USR1", taken)  # as before its time is over
    else:
        slurm.run("scancel", taken)
    (tmp_path / "taken").touch()
    assert slurm.ended(host, SECONDS) == "COMPLETED", _logs(tmp_path)
    last = "COMPLETED" if comes_again else "CANCELLED"
    assert slurm.ended(taken, SECONDS) == last, _logs(tmp_path)
    assert slurm.state(taken)["Restarts"] == str(int(comes_again))
    assert_equal(weights(tmp_path, 4 if comes_again else 2), digits_on_one_device)


def _until(is_so, told):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError(told())
