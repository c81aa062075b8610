"""The losses of one training, and the bytes and seconds of each block of updates."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.local_sgd import plan
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads

# Bytes and losses do not depend on the link; the seconds of the chart do.
RATE = "100mbit"
DEADLINE = 7200


def measure(job: plan.Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """What `local_steps_ranks.py` finds on hosts with such links.

    Args:
        job: its system is a choice.
        arguments: of the command line.

    Raises:
        RuntimeError: when a rank fails.
        subprocess.TimeoutExpired: when the ranks take too long.
    """
    command = [sys.executable, "-m", "benchmarks.local_steps_ranks", "--choice", job.system]
    command += ["--task", job.task, "--seed", str(job.number)]
    for name in ("blocks", "updates", "batch"):
        command += [f"--{name}", str(getattr(arguments, name))]
    command.append(arguments.backend)
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(plan.HOSTS), **ALLOCATOR}
    with tempfile.TemporaryDirectory() as folder, network.hosts(plan.HOSTS, RATE) as hosts:
        network.run_ranks(hosts, command, Path(folder), variables, DEADLINE)
        return json.loads(Path(folder, "found.json").read_text())
