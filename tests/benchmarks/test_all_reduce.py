"""All-reduces by schedules are right between processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.common.runner import environment
from tfdist.plan.algorithms import ALGORITHMS


@pytest.mark.parametrize(
    "ranks",
    [2, *(pytest.param(ranks, marks=pytest.mark.full) for ranks in range(3, 9))],
)
def test_all_ranks_have_the_same_right_sum(ranks, tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "tfdist", "run", "-n", str(ranks), "--strategy"]
    command += ["multi_worker", "-m", "tests.benchmarks.scheduled_ranks", str(path)]
    process = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(path.read_text())
    assert list(found) == list(ALGORITHMS)
    assert {name: of["error"] for name, of in found.items() if of["error"] > 1e-6} == {}
    assert [name for name, of in found.items() if not of["equal"]] == []
