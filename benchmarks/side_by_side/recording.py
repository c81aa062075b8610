"""What the scripts of all systems share: the command line, the place, and what they write.

A script trains through phases, one for each speed of the links. Before a phase its ranks wait until
`launch.py` has set that speed. So the ranks start once and are measured on every link. Nothing here
imports TensorFlow or PyTorch, because the environments of all systems use this file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS
from tests.traffic import joining

# Steps before the first phase: for tracing, caches, and the first steps of PowerSGD in PyTorch.
FIRST_STEPS = 4
# Steps of each phase that are not timed.
WARM_UP = 1


def parse(description: str | None) -> argparse.Namespace:
    """The command line, which `launch.py` writes, with `ranks` and the system's `options`.

    On your own hosts, the launcher of the system starts the script, and there are no addresses.
    """
    script = Path(sys.argv[0]).stem
    own = [name for name, system in SYSTEMS.items() if system.script == script]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="for N.json, what rank N found")
    parser.add_argument("addresses", nargs="*", help="of all hosts; none: the environment has them")
    parser.add_argument("--rank", type=int, help="with addresses")
    parser.add_argument("--interface", default="eth0", help="whose bytes are counted")
    parser.add_argument("--system", choices=own, required=True)
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--batch", type=int, required=True, help="samples per rank and step")
    parser.add_argument("--phases", type=int, nargs="+", required=True, help="timed steps of each")
    parser.add_argument("--together", action="store_true", help="wait for a word before each phase")
    arguments = parser.parse_args()
    arguments.options = SYSTEMS[arguments.system].options
    if arguments.addresses:
        arguments.ranks = len(arguments.addresses)
    else:
        arguments.rank, arguments.ranks = own_place(os.environ)
    return arguments


def own_place(variables: Mapping[str, str]) -> tuple[int, int]:
    """The rank that a launcher gave, and the number of ranks; 0 and 1 without a launcher.

    Args:
        variables: the environment variables: of horovodrun, mpirun or torchrun, or TF_CONFIG.
    """
    for prefix in ("HOROVOD_", "OMPI_COMM_WORLD_", ""):
        size = "WORLD_SIZE" if not prefix else f"{prefix}SIZE"
        if f"{prefix}RANK" in variables:
            return int(variables[f"{prefix}RANK"]), int(variables[size])
    config = json.loads(variables.get("TF_CONFIG", "{}"))
    if not config:
        return 0, 1
    members = [
        (kind, number)
        for kind in ("chief", "worker")
        for number in range(len(config["cluster"].get(kind, [])))
    ]
    return members.index((config["task"]["type"], int(config["task"]["index"]))), len(members)


def join(backend: str, arguments: argparse.Namespace) -> None:
    """Sets the environment variables of TensorFlow ("multi_worker") or Horovod."""
    if arguments.addresses:
        rank, folder, interface = arguments.rank, arguments.folder, arguments.interface
        joining.join(backend, rank, folder, arguments.addresses, interface)


def join_torch(arguments: argparse.Namespace) -> None:
    """Sets the environment variables of PyTorch."""
    if arguments.addresses:
        os.environ.update(
            MASTER_ADDR=arguments.addresses[0],
            MASTER_PORT=str(joining.PORT),
            RANK=str(arguments.rank),
            WORLD_SIZE=str(len(arguments.addresses)),
            GLOO_SOCKET_IFNAME=arguments.interface,
        )


class Recorder:
    """Times the steps of one rank, and counts the bytes that its interface sends.

    Args:
        arguments: the command line.
        versions: the versions of the packages that the result depends on.
        parameters: the number of trained parameters of the model.
    """

    def __init__(self, arguments: argparse.Namespace, versions: dict[str, str], parameters: int):
        self._arguments = arguments
        self._counter = Path("/sys/class/net", arguments.interface, "statistics/tx_bytes")
        self._left = FIRST_STEPS
        self._phase = -1
        self._phases: list[dict[str, Any]] = []
        names = ("system", "work", "batch", "rank", "ranks", "interface")
        self._result: dict[str, Any] = {
            **{name: getattr(arguments, name) for name in names},
            "versions": versions,
            "parameters": parameters,
            "losses": [],
            "phases": self._phases,
        }
        self._before = self._sent_before = 0

    @property
    def steps(self) -> int:
        """The number of steps to train."""
        return FIRST_STEPS + sum(WARM_UP + steps for steps in self._arguments.phases)

    def step_done(self, loss: float) -> None:
        """To be called after each step, when its update is done."""
        now = time.perf_counter_ns()
        timed = self._phase >= 0 and self._left <= self._arguments.phases[self._phase]
        if timed:
            self._phases[-1]["seconds"].append((now - self._before) / 1e9)
        self._result["losses"].append(loss)
        self._left -= 1
        if not self._left:
            if timed:
                sent = self._sent() - self._sent_before
                self._phases[-1]["bytes"] = sent / self._arguments.phases[self._phase]
            self._next_phase()
        elif self._phase >= 0 and self._left == self._arguments.phases[self._phase]:
            self._sent_before = self._sent()
        # Once more, because the lines above have taken time.
        self._before = time.perf_counter_ns()

    def keep(self, name: str, value: Any) -> None:
        """Adds `value` under this name to what the rank writes."""
        self._result[name] = value

    def _next_phase(self) -> None:
        self._phase += 1
        if self._phase == len(self._arguments.phases):
            self._write()
            return
        self._left = WARM_UP + self._arguments.phases[self._phase]
        self._phases.append({"seconds": []})
        if self._arguments.together:
            folder = self._arguments.folder
            ready_file(folder, self._phase, self._arguments.rank).touch()
            while not go_file(folder, self._phase).exists():
                time.sleep(0.005)

    def _sent(self) -> int:
        return int(self._counter.read_text())

    def _write(self) -> None:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        path = self._arguments.folder / f"{self._arguments.rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**self._result, "peak_bytes": peak}))


def ready_file(folder: Path, phase: int, rank: int) -> Path:
    """The file with which a rank says that it waits for a phase."""
    return folder / f"ready.{phase}.{rank}"


def go_file(folder: Path, phase: int) -> Path:
    """The file that tells the ranks that the links have the phase's speed."""
    return folder / f"go.{phase}"
