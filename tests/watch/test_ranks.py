"""RunReport and --watch in real processes: all is seen of each rank, and nothing is changed."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.watch import job
from tfdist.strategies.horovod.backend import is_installed

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_HOROVOD = pytest.mark.skipif(not is_installed(), reason="make horovod")


def started(options, name, folder, *more):
    """The output of a job, and what its ranks have written down."""
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "run", "--watch", *options, "-m", "tests.watch.job"]
        + [name, str(folder), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    return done.stdout + done.stderr, found


def assert_as_on_one_device(found):
    expected, _ = job.train(tfdist.MirroredStrategy(DEVICES[:1]), [])
    assert all(np.isfinite(value).all() for value in expected)
    for own in found.values():
        for a, b in zip(own["weights"], expected):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("multi_worker", marks=pytest.mark.full),
        pytest.param("horovod", marks=NO_HOROVOD),
    ],
)
def test_all_ranks_know_who_is_slow(engine, tmp_path):
    output, found = started(["-n", "2", "--strategy", engine], engine, tmp_path)
    assert set(found) == {0, 1}
    assert found[0]["history"] == found[1]["history"]
    history = found[0]["history"]
    assert history["slowest_rank"] == [1, 1, 1]
    assert all(0 < waiting <= 1 for waiting in history["waiting"])
    assert all(seconds > 0.09 / 2 for seconds in history["compute_seconds"])
    assert output.count("Rank 1 computes") == 3
    for rank in (0, 1):
        line = rf"tfdist run: rank {rank}: epoch [123]/3, step \d/8, [\d.,]+ samples/s, waits \d"
        assert re.search(line, output)
    text = (tmp_path / "report.html").read_text()
    assert "3 epochs" in text and "Ended after" in text
    assert len(re.findall(r"<span>rank [01]</span>", text)) == 2
    assert f"tfdist {tfdist.__version__}" in text
    assert_as_on_one_device(found)


@pytest.mark.parametrize(
    "killed", ["2", pytest.param("0", marks=pytest.mark.full)], ids=["another", "the first"]
)
def test_an_elastic_job_reports_its_members(killed, tmp_path):
    options = ["-n", "3", "--min", "2", "--restarts", "0"]
    output, found = started(options, "auto", tmp_path, killed)
    assert {"tfdist run: rank 0: epoch", "tfdist run: rank 1: epoch"} <= set(
        re.findall("tfdist run: rank .: epoch", output)
    )
    history = next(iter(found.values()))["history"]
    assert history["replicas"] == [3, 2, 2]
    assert all(own["history"] == history for own in found.values())
    text = (tmp_path / "report.html").read_text()
    assert "<h2>Members</h2>" in text and "3 epochs" in text
    assert text.count("<span>rank ") == 2
    assert_as_on_one_device(found)


def test_a_parameter_server_says_what_is_not_known(tmp_path):
    options = ["-n", "3", "--ps", "1"]
    output, found = started(options, "parameter_server", tmp_path)
    assert re.search(r"tfdist run: chief: epoch \d/3, step \d/8, [\d.]+ GB", output)
    assert re.search(r"tfdist run: worker [01]: epoch \d, step \d+\n", output)
    assert {"staleness", "step_seconds", "rest_seconds"} <= set(found[0]["history"])
    assert "compute_seconds" not in found[0]["history"]
    text = (tmp_path / "report.html").read_text()
    assert "<h2>Staleness</h2>" in text and "<th>worker</th>" in text
    assert "steps run on the workers of parameter servers" in text
    row = r"<tr><td>(\d)</td><td>(\d+)</td><td>[\d.]+</td><td>0</td><td>0</td></tr>"
    workers = re.findall(row, text)
    assert len(workers) >= 1 and sum(int(updates) for _, updates in workers) == 8
