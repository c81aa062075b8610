"""Timeline in real processes: one file, in which no exchange ends before all have begun it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tfdist.strategies.horovod.backend import is_installed

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_NO_HOROVOD = pytest.mark.skipif(not is_installed(), reason="make horovod")


@pytest.mark.parametrize(
    "engine", ["multi_worker", pytest.param("horovod", marks=[_NO_HOROVOD, pytest.mark.full])]
)
def test_ranks_share_a_file_and_a_clock(engine, tmp_path):
    path = tmp_path / "trace.json"
    job = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", engine]
    done = subprocess.run(
        [*job, "-m", "tests.callbacks.timeline_rank", engine, str(path)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    error = found["metadata"]["largest_clock_error_seconds"]
    # 1 ms on a machine with time to answer.
    assert 0 < error < 0.02
    assert abs(found["metadata"]["clock_offset_seconds"][1]) <= error
    exchanged = {}
    for event in found["traceEvents"]:
        if event["ph"] == "X" and event["name"].startswith("exchange"):
            key = event["name"], event["args"]["step"]
            exchanged.setdefault(key, {})[event["pid"]] = event
    assert len(exchanged) >= 2 * 4  # two buckets or more, in each of four steps
    for by_rank in exchanged.values():
        assert set(by_rank) == {0, 1}
        last_begin = max(event["ts"] for event in by_rank.values())
        first_end = min(event["ts"] + event["dur"] for event in by_rank.values())
        assert first_end >= last_begin - 2e6 * error
