"""Real Slurm: jobs that `sbatch` starts, and that are started again, train as one device does."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.equivalence.compare import MAX_WEIGHT_DIFFERENCE
from tests.slurm import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = pathlib.Path(__file__).with_name("train.py")
ALLOCATION = ROOT / "examples" / "slurm" / "elastic_allocation.sh"
_SECONDS = 240

pytestmark = pytest.mark.skipif(cluster.why_not() is not None, reason=str(cluster.why_not()))


@pytest.fixture(scope="module")
def slurm():
    """A cluster for this module."""
    with cluster.running() as found:
        yield found


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """The weights that one process trains."""
    folder = tmp_path_factory.mktemp("one")
    command = [sys.executable, str(TRAIN), str(folder)]
    subprocess.run(command, env=os.environ | _variables(), check=True, timeout=_SECONDS)
    return _weights(folder, 1)[0]


def _variables(**more):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    return {"PYTHONPATH": path, **quiet, **more}


def _weights(folder, replicas):
    """The weights of each rank."""
    found = []
    for rank in range(replicas):
        with np.load(folder / f"{rank} of {replicas}.npz") as file:
            found.append([file[name] for name in file.files])
    return found


def _equal(ranks, expected):
    for other in ranks[1:]:
        for first, second in zip(ranks[0], other, strict=True):
            np.testing.assert_array_equal(first, second)
    for value, wanted in zip(ranks[0], expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=MAX_WEIGHT_DIFFERENCE)


def _log(folder, job):
    return (folder / f"{job}.log").read_text()


@pytest.mark.parametrize("tasks", [2, 4])
def test_the_tasks_of_a_step_train_as_one_device(slurm, one_device, tmp_path, tasks):
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} {TRAIN} {tmp_path}\n")
    job = slurm.submit(tmp_path, script, f"--ntasks={tasks}", **_variables())
    assert slurm.ended(job, _SECONDS) == "COMPLETED", _log(tmp_path, job)
    _equal(_weights(tmp_path, tasks), one_device)


def test_a_job_that_is_started_again_goes_on_from_its_backup(slurm, one_device, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    programs = os.pathsep.join(
        [str(pathlib.Path(sys.executable).parent), slurm.environment["PATH"]]
    )
    given = ("--nodes=1", "--cpus-per-task=1", "--output", f"{tmp_path}/%j.log")
    variables = _variables(PATH=programs, TFDIST_SECRET_FILE=str(secret))
    command = (
        f"--chdir={tmp_path}",
        *given,
        str(ALLOCATION),
        str(TRAIN),
        str(tmp_path),
        "--backup",
    )
    job = slurm.run("sbatch", "--parsable", *command, **variables)
    _until((tmp_path / "epoch-3").exists, lambda: _log(tmp_path, job))
    slurm.run("scancel", "--signal=TERM", job)  # what Slurm sends before the time is over
    _until(lambda: slurm.state(job)["Restarts"] == "1", lambda: _log(tmp_path, job))
    (tmp_path / "epoch-1").unlink()
    assert slurm.ended(job, _SECONDS) == "COMPLETED", _log(tmp_path, job)
    assert not (tmp_path / "epoch-1").exists(), "training began anew"
    _equal(_weights(tmp_path, 2), one_device)


def _until(is_so, told):
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError(told())
