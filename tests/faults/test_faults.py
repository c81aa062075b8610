"""A rank dies, hangs or fails: the job ends, names it, and goes on to the same weights."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

JOB = pathlib.Path(__file__).with_name("job.py")
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE = 90
BACKENDS = ["multi_worker", "horovod"]


def run(backend: str, folder: pathlib.Path, *fault: str) -> subprocess.CompletedProcess:
    return launch(backend, str(JOB), backend, str(folder), *fault)


def launch(backend: str, *script: str) -> subprocess.CompletedProcess:
    """Runs a script and its arguments in two ranks."""
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", backend]
    command += ["--timeout", str(DEADLINE), "--stall-timeout", "5"]
    return start([*command, *script], DEADLINE + 30)


def start(command: list[str], timeout: float) -> subprocess.CompletedProcess:
    """Runs a command, which finds the package; the outputs are text."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture
def uninterrupted(shared, tmp_path_factory) -> np.ndarray:
    """The state after a run without a fault of one process, which is that of all ranks."""

    def compute() -> np.ndarray:
        folder = tmp_path_factory.mktemp("uninterrupted")
        finished = start([sys.executable, str(JOB), "multi_worker", str(folder)], DEADLINE)
        assert finished.returncode == 0, finished.stderr
        return np.load(folder / "rank0.npy")

    return shared.get(("uninterrupted",), compute)


def final_state(folder: pathlib.Path) -> np.ndarray:
    first, second = (np.load(folder / f"rank{rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    return first


FAULTS = [
    ("kill_trace", 1, "SIGKILL", 137),
    ("kill_step", 1, "SIGKILL", 137),
    ("stop", 1, "stopped", 124),
    ("data", 1, "a broken record", 1),
    ("leave", 1, "rank 1 ended with status 0 before the others, which were still training", 1),
]
# What the launcher sees of others is the same as of one of these.
USUAL = [
    ("multi_worker", "kill_step"),
]


def _cases():
    for backend in BACKENDS:
        for fault in FAULTS:
            marks = [] if (backend, fault[0]) in USUAL else [pytest.mark.full]
            yield pytest.param(backend, *fault, marks=marks, id=f"{fault[0]}-{backend}")


@pytest.mark.parametrize(("backend", "fault", "rank", "said", "status"), list(_cases()))
def test_job_ends_and_goes_on(uninterrupted, backend, fault, rank, said, status, tmp_path):
    failed = run(backend, tmp_path, fault, str(rank))
    assert failed.returncode == status, failed.stderr
    assert f"rank {rank}" in failed.stderr
    assert said in failed.stderr
    again = run(backend, tmp_path)
    assert again.returncode == 0, again.stderr
    assert np.abs(final_state(tmp_path) - uninterrupted).max() <= 1e-6
