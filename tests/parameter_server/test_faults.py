"""Real processes are killed and stopped; the weights tell what was trained on, and how often."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.launching import all_end
from tests.parameter_server.counting import BATCHES, SAMPLES
from tfdist.replay.log import read

ROOT = Path(__file__).parents[2]
LOSING = "tests.parameter_server.losing"
LOST = "tests.parameter_server.lost"


def ended(processes, within=60):
    """All exit statuses, once each process has ended by itself."""
    return {name: process.wait(within) for name, process in processes.items()}


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        ("static", "2"),
        ("dynamic", "20"),
        ("static", "20"),
    ],
)
def test_training_goes_on_without_a_worker_and_with_it_when_it_is_back(
    start, tmp_path, source, seconds
):
    processes, addresses = start(3, 1, "workers", source, STOPPED_SECONDS=seconds)
    assert processes["chief", 0].wait(300) == 0, (tmp_path / "chief-0.log").read_text()
    facts = json.loads((tmp_path / "facts").read_text())
    epochs = len(facts["counted"])
    assert facts["seen"] == [epochs] * SAMPLES  # by whom ever
    assert facts["updates"] == facts["iterations"] == epochs * BATCHES
    assert facts["counted"] == [SAMPLES] * epochs
    by_epoch = [
        set(facts["workers"][first : first + BATCHES])
        for first in range(0, epochs * BATCHES, BATCHES)
    ]
    assert by_epoch[0] == {0, 1, 2}
    assert by_epoch[2] == {1, 2}
    assert facts["meanwhile"] == 7  # while a worker was stopped
    assert 0 in by_epoch[-1]
    said = (tmp_path / "chief-0.log").read_text()
    worker = f"tfdist: worker 0 ({addresses['worker'][0]}) is"
    assert f"{worker} lost; training goes on with the others. (UnavailableError)" in said
    assert f"{worker} back." in said
    statuses = ended(processes)
    assert statuses.pop(("worker", 0)) == -9
    assert statuses == {("chief", 0): 0, ("worker", 1): 0, ("worker", 2): 0, ("ps", 0): 0}
    assert all_end([json.loads((tmp_path / "pid-worker-0").read_text())], within=20)


@pytest.mark.full
def test_compression_begins_anew_with_a_worker_that_is_back_and_so_does_a_replay(start, tmp_path):
    processes, _ = start(2, 1, "recorded", job=LOSING)
    said = tmp_path / "chief-0.log"
    assert processes["chief", 0].wait(200) == 0, said.read_text()
    assert "tfdist: what compression had left unsent on worker 0 is lost." in said.read_text()
    (fit,) = read(str(tmp_path / "run.log")).fits
    used = [used for run in fit.runs for used in run.used]
    assert [one.worker for one in used if one.anew] == [0]
    weights = np.load(tmp_path / "recorded.npz")
    assert all(np.isfinite(weights[name]).all() for name in weights)

    replay = ["replay", "-m", str(tmp_path / "run.log"), LOSING, str(tmp_path), "replayed"]
    finished = subprocess.run(
        [sys.executable, "-m", "tfdist", *replay],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "bit for bit" in finished.stderr.splitlines()[-1]
    replayed = np.load(tmp_path / "replayed.npz")
    for name in weights:
        np.testing.assert_array_equal(weights[name], replayed[name])


@pytest.mark.full
def test_the_parameter_server_that_is_lost_is_named(start, tmp_path):
    processes, addresses = start(1, 2, "ps-1", job=LOST)
    statuses = ended(processes)
    assert statuses == {("chief", 0): 1, ("worker", 0): 0, ("ps", 0): 0, ("ps", 1): -9}
    last = (tmp_path / "chief-0.log").read_text().splitlines()[-1]
    assert last.startswith(f"ConnectionError: ps 1 ({addresses['ps'][1]}) is lost, and with it")


@pytest.mark.full
def test_when_all_workers_are_lost_they_are_named_after_the_timeout(start, tmp_path):
    processes, addresses = start(2, 1, "worker-0", "worker-1", job=LOST)
    killed = {("worker", 0): -9, ("worker", 1): -9}
    assert ended(processes) == {("chief", 0): 1, ("ps", 0): 0, **killed}
    said = (tmp_path / "chief-0.log").read_text()
    names = ", ".join(f"worker {n} ({address})" for n, address in enumerate(addresses["worker"]))
    assert f"ConnectionError: All workers are lost for more than 1 s: {names}. Start" in said
    assert said.endswith("Received: worker_timeout=1\n")


@pytest.mark.full
def test_a_job_that_lost_its_chief_or_a_parameter_server_goes_on_from_its_backup(start, tmp_path):
    processes, _ = start(1, 1, "servers")
    assert ended(processes, 150) == {("chief", 0): -9, ("worker", 0): 0, ("ps", 0): 0}

    processes, addresses = start(1, 1, "servers")
    assert ended(processes, 150) == {("chief", 0): 1, ("worker", 0): 0, ("ps", 0): -9}
    last = (tmp_path / "chief-0.log").read_text().splitlines()[-1]
    assert last == (
        f"ConnectionError: ps 0 ({addresses['ps'][0]}) is lost, and with it its part of the "
        f"weights. Within 5 s, ps 0 ({addresses['ps'][0]}: connection refused) could not be "
        "reached. Start the job again; with a keras.callbacks.BackupAndRestore it goes on from the "
        "last backup."
    )

    processes, _ = start(1, 1, "servers")
    assert set(ended(processes, 150).values()) == {0}
    facts = json.loads((tmp_path / "facts").read_text())
    killed = [json.loads((tmp_path / f"killed-{name}").read_text()) for name in ("chief-0", "ps-0")]
    assert killed == [BATCHES + 6, 2 * BATCHES + 6]
    assert len(facts["counted"]) == 2  # the third and the fourth epoch
    assert facts["seen"] == [4] * SAMPLES
    assert facts["updates"] == facts["iterations"] == 4 * BATCHES
