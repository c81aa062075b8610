"""No process but the parameter servers needs memory for an embedding."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DEADLINE = 600
_TINY, _LARGE, _WIDTH = 4000, 800_000, 64
_TABLE = _LARGE * _WIDTH * 4


def _peaks(folder, rows, optimizer):
    """The peak memory by phase and kind of process."""
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--ps", "2"]
    command += ["--strategy", "parameter_server", "-m", "benchmarks.large_embeddings_ranks"]
    command += [str(folder / "measured.json"), "--system", "tfdist", "--optimizer", optimizer]
    given = {"rows": rows, "width": _WIDTH, "servers": 2, "batch": 16, "steps": 6}
    command += [f"--{name}={value}" for name, value in given.items()]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, f"--folder={folder}"],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    phases = json.loads((folder / "measured.json").read_text())
    return {name: phase["peak"] for name, phase in phases.items()}


def _growth(folder, optimizer):
    """By how much of the table the peaks grow from a tiny to a large table."""
    tiny, large = (_peaks(folder, rows, optimizer) for rows in (_TINY, _LARGE))
    assert list(tiny) == list(large)
    return {
        name: {kind: (peak - tiny[name][kind]) / _TABLE for kind, peak in peaks.items()}
        for name, peaks in large.items()
    }


def _check(growth, of_servers):
    assert set(growth) >= {"make", "fit", "evaluate", "predict"}
    assert set(growth) >= {"save_weights", "load_weights", "BackupAndRestore"}
    for name, peaks in growth.items():
        assert peaks["chief"] < 1 / 3, (name, growth)
        assert peaks["worker"] < 1 / 10, (name, growth)
        assert peaks["ps"] < of_servers, (name, growth)


@pytest.mark.full
def test_only_servers_need_memory_for_a_table(tmp_path):
    # A server has half of the table, and now and then some rows of it once more.
    _check(_growth(tmp_path, "sgd"), 0.5 + 0.3)


@pytest.mark.full
def test_only_servers_need_memory_for_the_state_of_adam(tmp_path):
    # Half of the table and of two slots, and what the update computes with.
    _check(_growth(tmp_path, "adam"), 3 * 0.5 + 0.75)
