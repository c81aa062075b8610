"""Starts the processes that measure, and lets systems take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import ROOT
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads

# Variables with which free memory goes back to the system at once, and TensorFlow's kernels keep no
# copies of weights. So the peak of a process is near to what must be there.
FREE_MEMORY_GOES_BACK = {
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def order(systems: Sequence[str], number: int) -> Sequence[str]:
    """The order of the systems in a round: forwards and backwards in turn (ABBA).

    So a slow drift of the machine's speed affects all systems equally.
    """
    return systems if number % 2 == 0 else systems[::-1]


def in_turn(systems: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """The number of the round and the system, for each measurement of all rounds."""
    for number in range(rounds):
        for name in order(systems, number):
            yield number, name


def environment(*folders: Path) -> dict[str, str]:
    """This process' variables, with which these folders and the benchmarks can be imported."""
    paths = [*map(str, folders), str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ | {"PYTHONPATH": path}


def printed(module: str, *options: object, folders: Sequence[Path] = ()) -> Any:
    """Runs a module of this folder in a process of its own. Returns the JSON that it prints last.

    Args:
        module: the name of the module.
        *options: the options of its command line.
        folders: as for `environment`.

    Raises:
        RuntimeError: when the process fails; the message has the end of what it wrote.
    """
    output = _run(_command(module, *options), environment(*folders))
    return json.loads(output.splitlines()[-1])


def written(module: str, *options: object, start: Callable[[list[str]], None]) -> Any:
    """The JSON that one of several processes of a module writes.

    Args:
        module: the name of the module. Its command line begins with the path to write to.
        *options: the rest of the command line.
        start: runs the processes, given the command for each of them.

    Raises:
        RuntimeError: as `printed`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "measured.json")
        start(_command(module, path, *options))
        return json.loads(path.read_text())


def in_own_network(gigabits: float | None = None) -> list[str]:
    """The beginning of a command that has a network of its own: a loopback device, nobody else's.

    Args:
        gigabits: per second, what the device carries at most; None for no limit.
    """
    limit = ""
    if gigabits is not None:
        rate = f"{round(1000 * gigabits)}mbit"
        limit = f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms && "
    return ["unshare", "--net", "sh", "-c", f'ip link set lo up && {limit}exec "$@"', "sh"]


def alone(command: list[str]) -> None:
    """Runs one process, for `written`."""
    _run(command, environment())


def launched(
    processes: int,
    strategy: str,
    *options: str,
    alone: bool = False,
    gigabits: float | None = None,
) -> Callable[[list[str]], None]:
    """A function for `written` that starts so many processes with `tfdist run`.

    Args:
        processes: the number of processes, without parameter servers.
        strategy: the name of the strategy.
        options: of `tfdist run`.
        alone: whether they have a network of their own, which needs root.
        gigabits: per second, what that network carries at most; None for no limit.
    """
    launcher = [sys.executable, "-m", "tfdist", "run", "-n", str(processes), *options]
    launcher = [*(in_own_network(gigabits) if alone else []), *launcher]

    def start(command: list[str]) -> None:
        _run([*launcher, "--strategy", strategy, *command[1:]], environment())

    return start


def torchrun(python: str, processes: int) -> Callable[[list[str]], None]:
    """A function for `written` that starts so many processes with PyTorch's launcher.

    Args:
        python: the interpreter that has PyTorch.
        processes: the number of processes. They have a network of their own, which needs root.
    """
    launcher = [*in_own_network(), python, "-m", "torch.distributed.run"]
    launcher += ["--nproc-per-node", str(processes)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", "29500"]

    def start(command: list[str]) -> None:
        # As `tfdist run` does it, so that memory that is free goes back to the system alike.
        _run([*launcher, *command[1:]], ALLOCATOR | environment())

    return start


def on_hosts(
    ranks: int, rate: str, deadline: float, python: str = sys.executable
) -> Callable[[list[str]], None]:
    """A function for `written` that runs a rank on each of so many hosts.

    The hosts are network namespaces of this machine, which share its cores, and need root. What
    `network.run_ranks` appends comes after `--host`: the rank, a folder and all addresses.

    Args:
        ranks: the number of hosts.
        rate: of their links, as `tc` writes it, in both directions.
        deadline: seconds.
        python: the interpreter.
    """

    def start(command: list[str]) -> None:
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(ranks), **ALLOCATOR}
        command = [python, *command[1:], "--host"]
        with tempfile.TemporaryDirectory() as folder, network.hosts(ranks, rate) as hosts:
            network.run_ranks(hosts, command, Path(folder), variables, deadline)

    return start


def _command(module: str, *options: object) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, options)]


def _run(command: list[str], variables: dict[str, str]) -> str:
    """What a command prints."""
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr[-5000:]}")
    return process.stdout
