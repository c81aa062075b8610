"""Starts several real processes, as users do, and brings back what each of them found out."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STRATEGIES = ("multi_worker", "horovod")


def run(strategy, *command, count=2, cwd=None, timeout=240):
    """Runs `command` in `count` processes with `tfdist run`; returns what they printed.

    Args:
        strategy: "multi_worker", "horovod" or "parameter_server".
        *command: a script and its arguments, or "-m" and a module.
        count: the number of processes.
        cwd: the directory to run in.
        timeout: seconds after which the job is ended.
    """
    environ = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PYTHONPATH")}
    environ |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    launcher = [sys.executable, "-m", "tfdist", "run", "-n", str(count), "--strategy", strategy]
    result = subprocess.run(
        [*launcher, "--timeout", str(timeout), *map(str, command)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout + 30,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
    return result.stdout


def results(strategy, module, directory):
    """What the processes of `python -m module STRATEGY DIRECTORY` wrote as JSON, by rank."""
    run(strategy, "-m", module, strategy, directory)
    return [json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in (0, 1)]
