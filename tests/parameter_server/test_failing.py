"""Errors in steps and data, and what slow workers do to what policies promise."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parameter_server.counting import BATCHES, SAMPLES

ROOT = Path(__file__).parents[2]


def found(module, *arguments):
    """What a script of this folder prints, as JSON."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [sys.executable, "-m", f"tests.parameter_server.{module}", *arguments],
        env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_errors_are_those_of_the_step_name_the_worker_and_leave_all_usable():
    runs = found("failing")
    workers = enumerate(runs["addresses"])
    either = [[f"This happened on worker {n} ({address})."] for n, address in workers]
    # Both workers read all of the data, so either may find the broken record first.
    expected = {
        "step": ("a bad sample", either[1:]),
        "data of workers": ("a broken record", either),
    }
    for name, (text, possible) in expected.items():
        kind, said, notes = runs[name]["error"]
        assert kind == "InvalidArgumentError"
        assert notes in possible
        assert text in said
        assert runs[name]["updates"] < BATCHES  # of 50 epochs, or one
    assert runs["Ctrl-C"]["error"][0] == "KeyboardInterrupt"
    assert runs["Ctrl-C"]["updates"] == 6
    for name in ("well", "after an error", "after Ctrl-C"):
        assert (runs[name]["error"], runs[name]["updates"]) == (None, BATCHES)
    assert all(runs[name]["exact"] for name in runs if "exact" in runs[name])
    result, findings = runs["NaN"]
    step, _, worker = findings[0]
    assert (result["epochs"], result["updates"], result["NaN"]) == (1, step, True)
    assert {path.rpartition("/")[2] for _, path, _ in findings} == {"kernel", "bias"}
    assert worker == 0  # the seventh batch is one of worker 0
    result = runs["NaN of Keras"]
    assert result["epochs"] == 1 and result["updates"] < 20 and result["NaN"]


def most_ahead(workers):
    """How many steps more than the slowest a worker had finished when it did another one."""
    ahead = 0
    for first in range(0, len(workers), BATCHES):  # each epoch counts anew
        finished = collections.Counter({0: 0, 1: 0, 2: 0})
        for worker in workers[first : first + BATCHES]:
            if finished.total() < BATCHES - 6:  # later there may be nothing left for the slowest
                ahead = max(ahead, finished[worker] - min(finished.values()))
            finished[worker] += 1
    return ahead


@pytest.mark.full
@pytest.mark.parametrize("policy", ["ssp", "wait", "drop"])
def test_no_worker_is_too_fast_and_no_gradient_too_stale(policy):
    facts = found("slowed", policy)
    assert facts["reported"] == sorted(facts["staleness"])
    assert facts["iterations"] == facts["updates"] == 3 * BATCHES - facts["dropped"]
    if policy == "drop":
        assert facts["dropped"] > 0 and max(facts["staleness"]) <= 1
        assert max(facts["seen"]) <= 3
    else:
        assert facts["seen"] == [3] * SAMPLES
    if policy == "wait":
        assert max(facts["staleness"]) == 3
    if policy == "ssp":
        assert most_ahead(facts["workers"]) == 1
    said, notes = facts["error"]
    assert "a broken record" in said and notes == []  # the chief reads the data
