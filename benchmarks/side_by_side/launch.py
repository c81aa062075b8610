"""Runs one system on the hosts of a rig, on links of several speeds in turn."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.side_by_side import recording
from benchmarks.side_by_side.merging import Report
from benchmarks.side_by_side.rig import Rig, ended
from benchmarks.side_by_side.systems import SYSTEMS
from tfdist.launcher.ranks import ALLOCATOR

# Seconds that ranks may take to start and trace, and that a step may take on the slowest link.
START_SECONDS, STEP_SECONDS = 300, 30


@dataclasses.dataclass(frozen=True)
class Phase:
    """Training on links of one speed.

    Attributes:
        rate: the rate of all links, as `tc` writes it.
        steps: the number of timed steps.
    """

    rate: str
    steps: int


class Failed(Exception):
    """The system did not train; the message is what its ranks printed last."""


def launch(
    name: str,
    work: str,
    batch: int,
    rig: Rig,
    phases: Sequence[Phase],
    peers: str,
    checked: Callable[[list[float]], None],
) -> list[Report]:
    """What all ranks wrote.

    Args:
        name: the name of the system.
        work: the name in `WORKS`.
        batch: samples per rank and step.
        rig: the hosts.
        phases: at least one phase.
        peers: as for `System.python`.
        checked: called before each phase, with the measured speeds of the links.

    Raises:
        Failed: when a rank fails or takes too long.
    """
    system = SYSTEMS[name]
    # For ranks of one process and one core each, so that all systems have the same.
    variables = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "OMP_NUM_THREADS": "1",
        # PyTorch always uses oneDNN. TensorFlow uses it by default only on processors with VNNI.
        "TF_ENABLE_ONEDNN_OPTS": "1",
        **ALLOCATOR,
        **system.variables,
    }
    with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as made:
        folder = Path(made)
        logs = [folder / f"{number}.log" for number in range(len(rig.hosts))]
        processes: list[subprocess.Popen] = []
        with ended(processes):
            for number, log in enumerate(logs):
                command = [system.python(peers), "-m", f"benchmarks.side_by_side.{system.script}"]
                command += [str(folder), *(host.address for host in rig.hosts)]
                command += ["--rank", str(number), "--interface", rig.interface, "--work", work]
                command += ["--batch", str(batch), "--system", name, "--together"]
                command += ["--phases", *(str(phase.steps) for phase in phases)]
                processes.append(rig.start(number, command, variables, log))
            try:
                for index, phase in enumerate(phases):
                    _await_ranks(processes, folder, index, _seconds(phases[:index]))
                    rig.limit(phase.rate)
                    checked(rig.checked(phase.rate, folder))
                    recording.go_file(folder, index).touch()
                for process in processes:
                    if process.wait(_seconds(phases)):
                        raise Failed("a rank failed")
            except (Failed, subprocess.TimeoutExpired) as error:
                said = "\n".join(last_words(log.read_text(errors="replace")) for log in logs)
                raise Failed(f"{error}\n{said}") from error
        return [
            json.loads((folder / f"{number}.json").read_text()) for number in range(len(rig.hosts))
        ]


def last_words(text: str) -> str:
    """The end of what a rank printed, without the rows of arrays in TensorFlow's messages."""
    lines = [line for line in text.splitlines() if not re.fullmatch(r"[-+\d.,e\s\[\]]*", line)]
    return "\n".join(lines)[-3000:]


def reason(error: str) -> str:
    """The line of a failed rank's output that says what went wrong."""
    named = r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*|^\s*what\(\): .*"
    lines = re.findall(named, error, re.M) or error.splitlines()[:1]
    return lines[-1].strip()[:120]


def _seconds(phases: Sequence[Phase]) -> float:
    """How long the ranks may take for these phases."""
    return START_SECONDS + STEP_SECONDS * sum(recording.WARM_UP + phase.steps for phase in phases)


def _await_ranks(
    processes: Sequence[subprocess.Popen], folder: Path, phase: int, seconds: float
) -> None:
    """Returns when all ranks wait for a phase to begin."""
    until = time.monotonic() + seconds
    files = [recording.ready_file(folder, phase, number) for number in range(len(processes))]
    while not all(file.exists() for file in files):
        if any(process.poll() for process in processes):
            raise Failed("a rank failed")
        if time.monotonic() > until:
            raise Failed(f"a rank took more than {seconds:.0f} s")
        time.sleep(0.02)
