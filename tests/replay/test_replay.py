"""Recorded runs of real processes come to the same weights when they are replayed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.launching import Launcher
from tfdist.replay.log import read

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "replay" / "job.py"
RUN = ("run", "-n", "3", "--ps", "1", "--timeout", "300")


class Job:
    """A script with options, in a directory of its own."""

    def __init__(self, directory, **options):
        self.directory = directory
        self.options = {"record": str(directory / "run.log"), "fits": [(2, 248)], **options}
        self.environ = Launcher(directory / "job").environment(PYTHONPATH=str(ROOT))
        self.environ.pop("TFDIST_REPLAY", None)

    def start(self, *command, script=JOB, **options):
        """Runs the script by a command, of `tfdist` if there is one; the outputs are text."""
        tfdist = ["-m", "tfdist", *command] if command else []
        program = [sys.executable, *tfdist, str(script), json.dumps(options)]
        return subprocess.run(
            program, env=self.environ, capture_output=True, text=True, timeout=400, check=False
        )

    def record(self, *command):
        weights = str(self.directory / "recorded.npz")
        finished = self.start(*command, weights=weights, **self.options)
        assert finished.returncode == 0, finished.stderr[-3000:]
        return self

    def replay(self):
        weights = str(self.directory / "replayed.npz")
        finished = self.start("replay", self.options["record"], weights=weights, **self.options)
        assert finished.returncode == 0, finished.stderr[-3000:]
        return finished.stderr.splitlines()[-1]

    @property
    def used(self):
        """All entries of the record."""
        fits = read(self.options["record"]).fits
        return [used for fit in fits for run in fit.runs for used in run.used]

    def difference(self):
        """max |Δw| of what the script has saved."""
        with (
            np.load(self.directory / "recorded.npz") as recorded,
            np.load(self.directory / "replayed.npz") as replayed,
        ):
            assert set(recorded) == set(replayed) and len(recorded) > 10
            return max(
                np.abs(recorded[name].astype("float64") - replayed[name]).max() for name in recorded
            )


def check(job):
    """Replays a recorded job."""
    before = Path(job.options["record"]).read_bytes()
    line = job.replay()
    assert job.difference() <= 1e-6
    updates = sum(used.action == "update" for used in job.used)
    assert line.startswith(f"tfdist replay: {updates} updates")
    assert "bit for bit" in line
    assert Path(job.options["record"]).read_bytes() == before


EVERYTHING = {
    "staleness": "Bounded(1)",
    "input": "dynamic",
    "accumulation_steps": 2,
    "compression": "TopK(0.2, min_bytes=0)",
    "parts": 2,
}


@pytest.mark.full
def test_a_run_of_processes_with_a_slow_worker(tmp_path):
    job = Job(tmp_path, staleness="InverseLR()", fits=[(2, 248), (1, 248)]).record(*RUN)
    staleness = {used.staleness for used in job.used}
    assert len(staleness) > 1, staleness
    assert {used.worker for used in job.used} == {0, 1}
    check(job)


# One process of pytest-xdist records the run.
shares_run = pytest.mark.xdist_group("replay")


@pytest.fixture(scope="module")
def with_drops(tmp_path_factory):
    """A run with all of that, in which gradients were dropped.

    A batch by itself, which the last `fit` has, is never too stale to be kept for the next ones.
    """
    directory = tmp_path_factory.mktemp("drops")
    job = Job(directory, cluster=True, fits=[(2, 248), (1, 8)], **EVERYTHING).record()
    assert {used.action for used in job.used} == {"update", "dropped", "kept"}
    assert {used.staleness for used in job.used if used.action == "update"} == {0, 1}
    assert any(used.anew for used in job.used)
    return job


@pytest.mark.full
@shares_run
def test_drops_what_is_kept_parts_and_compression(with_drops):
    check(with_drops)


@pytest.mark.full
@shares_run
def test_a_script_that_is_not_the_recorded_one_is_told_what_differs(with_drops):
    with_drops.environ["TFDIST_REPLAY"] = with_drops.options["record"]
    script = ROOT / "tests" / "replay" / "mistakes.py"
    finished = with_drops.start(script=script, **EVERYTHING)
    with_drops.environ.pop("TFDIST_REPLAY")
    assert finished.returncode == 0, finished.stderr[-3000:]
    errors = json.loads(finished.stdout.splitlines()[-1])
    log = with_drops.options["record"]
    for name, said in {
        "policy": "staleness is [Bounded(max_staleness=2, on_exceed='drop')], then [Bounded(max_",
        "accumulation": "accumulation_steps is 1, then 2",
        "variables": "the variables with sequential/dense/kernel is float32 of shape [8, 16]",
        "weights": "weights that differ by ",
        "second strategy": "Received: a second one with it",
        "data": "Received: another batch ",
        "length": "Received: another batch ",
    }.items():
        assert errors[name] is not None and said in errors[name], (name, errors[name])
        assert log in errors[name] or name in ("data", "length", "second strategy")


@pytest.mark.full
@shares_run
def test_what_a_killed_chief_has_recorded_is_replayed(with_drops, tmp_path):
    log = tmp_path / "cut.log"
    lines = Path(with_drops.options["record"]).read_bytes().splitlines(keepends=True)
    second = [place for place, line in enumerate(lines) if line.startswith(b'["run"')][1]
    log.write_bytes(b"".join(lines[: second + 6]) + lines[second + 6][:20])
    weights = str(tmp_path / "weights.npz")
    options = {**with_drops.options, "fits": with_drops.options["fits"][:1], "weights": weights}
    finished = with_drops.start("replay", str(log), **options)
    assert finished.returncode == 0, finished.stderr[-3000:]
    updates = sum(line.startswith(b'["update"') for line in lines[: second + 6])
    assert f"tfdist replay: {updates} updates" in finished.stderr
    assert "to the place where the record is cut off" in finished.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"staleness": "[InverseLR(), DelayCompensated(adaptive=True)]", "accumulation_steps": 3},
        {"staleness": "Bounded(1)", "input": "dynamic"},
        {"staleness": "Bounded(1, on_exceed='wait')", "input": "static"},
        {"staleness": "Synchronous()", "accumulation_steps": 2},
        {"staleness": "Synchronous()", "compression": "RandomK(0.2, min_bytes=0)"},
        {"staleness": "Synchronous(parts_per_worker=2, drop=1)", "accumulation_steps": 2},
        {"compression": "DGC(0.1, momentum=0.0, min_bytes=0)", "input": "dynamic"},
        {"staleness": "DelayCompensated()", "parts": 2},
    ],
    ids=[
        "compensated",
        "dropped",
        "waiting",
        "synchronous",
        "synchronous, compressed",
        "synchronous, late parts dropped",
        "compressed",
        "in parts",
    ],
)
def test_runs_of_processes_with_all_policies(tmp_path, options):
    run = [*RUN[:-3], str(options.get("parts", 1)), *RUN[-2:]]
    check(Job(tmp_path, **options).record(*run))
