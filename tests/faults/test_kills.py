"""A process is killed while it writes a backup: the job goes on from a whole one."""

import json
import pathlib
import sys

import numpy as np
import pytest

from tests.faults import kills
from tests.faults.test_faults import DEADLINE, launch, start

JOB = pathlib.Path(kills.__file__)
# How many backups are whole after a start that is killed at a point: the first one, or both.
WHOLE = {"weights": 1, "between": 1, "metadata": 1, "moving": 2, "after": 2}


def run(strategy, folder, *points):
    """Starts the job until it comes to its end; all starts but the last are killed at a point."""
    folder.mkdir(exist_ok=True)
    if strategy in ("multi_worker", "horovod"):
        for point in points:
            killed = launch(strategy, str(JOB), str(folder), strategy, point)
            assert killed.returncode == 137, killed.stderr
            assert "rank 0" in killed.stderr
        done = launch(strategy, str(JOB), str(folder), strategy)
    else:
        command = [sys.executable, str(JOB), str(folder), strategy, *points]
        done = start(command, 10 * DEADLINE)
    assert done.returncode == 0, done.stderr
    ranks = sorted(folder.glob("rank*.npy"))
    states = [np.load(path) for path in ranks]
    for state in states:
        np.testing.assert_array_equal(state, states[0])
    return states[0]


@pytest.fixture
def uninterrupted(shared, tmp_path_factory):
    """The state after a run that nothing interrupts; synchronous strategies come to the same."""

    def state(strategy):
        same_as = strategy if strategy == "parameter_server" else "mirrored"
        folder = tmp_path_factory.mktemp("uninterrupted")
        return shared.get(("uninterrupted by kills", same_as), lambda: run(same_as, folder))

    return state


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker", "horovod", "parameter_server"])
def test_a_job_goes_on_from_a_whole_backup(uninterrupted, strategy, tmp_path):
    folder, points = tmp_path / "killed", kills.POINTS
    state = run(strategy, folder, *points)
    starts = [0]
    for point in points:
        starts.append(starts[-1] + WHOLE[point])
    assert [int(line) for line in (folder / "starts").read_text().split()] == starts
    accumulation = 1 if strategy == "parameter_server" else kills.ACCUMULATION
    updates = kills.EPOCHS * kills.BATCHES // accumulation
    assert json.loads((folder / "updates").read_text()) == updates
    assert np.abs(state - uninterrupted(strategy)).max() <= 1e-6
    assert not list(folder.rglob("*incomplete*"))
