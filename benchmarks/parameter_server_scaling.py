"""Updates per second with more workers, and with more parameter servers.

- Workers: each step takes a fixed time besides, in which the worker's processor is free, as if a
  GPU computed. All processes are on this machine, over loopback. Linear is the number of workers
  times the updates per second of one worker.
- Parameter servers: each process is a host of its own (a network namespace, which needs root) on a
  link of limited speed, and the model is so large, and the workers so many, that the servers' links
  are the limit.

Where TensorFlow's loop fails, the table says so; it is not tried again.

A round is an epoch, and takes some seconds at least: at its end workers wait for the last one.

The peer is TensorFlow's own loop, as in parameter_server.py, with the same pause and model.

    python -m benchmarks.parameter_server_scaling                   # half an hour
    python -m benchmarks.parameter_server_scaling --workers 1 4 --servers --systems tfdist
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from tests.traffic import network

PORT = 2222


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--systems", nargs="+", default=["TensorFlow", "tfdist"])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--pause", type=float, default=0.4, help="seconds, in each step")
    parser.add_argument("--servers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--rate", default="100mbit", help="of each host's link, as `tc` writes it")
    parser.add_argument("--hosts", type=int, default=16, help="workers, with several servers")
    parser.add_argument("--width", type=int, default=512, help="of the layers, with servers")
    parser.add_argument("--steps", type=int, default=50, help="of each worker in a round")
    help_of_updates = "in a round for one server; with n servers n times as many"
    parser.add_argument("--updates", type=int, default=40, help=help_of_updates)
    parser.add_argument("--rounds", type=int, default=2)
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    return parser.parse_args()


def on_hosts(workers: int, servers: int, rate: str) -> Callable[[list[str]], None]:
    """A function for `runner.written` that starts each process on a host of its own."""

    def start(command: list[str]) -> None:
        names = [("chief", 0), *(("worker", i) for i in range(workers))]
        names += [("ps", i) for i in range(servers)]
        with network.hosts(len(names), rate) as hosts:
            cluster: dict[str, list[str]] = {}
            for (job, _), host in zip(names, hosts):
                cluster.setdefault(job, []).append(f"{host.address}:{PORT}")
            processes = []
            for (job, index), host in zip(names, hosts):
                task = {"cluster": cluster, "task": {"type": job, "index": index}}
                variables = {"TF_CONFIG": json.dumps(task), "TFDIST_CONNECT_TIMEOUT": "200"}
                environment = runner.environment() | variables
                with open(os.devnull, "w") as log:
                    processes.append(host.start(command, env=environment, stdout=log, stderr=log))
            try:
                if processes[0].wait(900):
                    raise RuntimeError(f"{' '.join(command)} failed")
            finally:
                for process in processes:
                    process.kill()
                    process.wait()

    return start


def measure(
    arguments: argparse.Namespace, system: str, given: dict[str, Any], start: Callable
) -> list[float]:
    """The updates per second of each round."""
    common = {"system": system, "policy": "none", "optimizer": "sgd", "rounds": arguments.rounds}
    flags = [text for name, value in (common | given).items() for text in (f"--{name}", value)]
    result = runner.written("parameter_server_ranks", *flags, start=start)
    return [given["steps"] / seconds for seconds in result["seconds"]]


def with_workers(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What is measured over loopback."""
    found = []
    for workers, system in itertools.product(arguments.workers, arguments.systems):
        given = {"layers": 2, "width": 64, "batch": 16, "pause": arguments.pause}
        given["steps"] = arguments.steps * workers
        start = runner.launched(1 + workers, "parameter_server")
        updates = measure(arguments, system, given, start)
        found.append({"system": system, "workers": workers, "updates": updates})
        print(found[-1], file=sys.stderr, flush=True)
    return found


def with_servers(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What is measured on links."""
    found = []
    for servers, system in itertools.product(arguments.servers, arguments.systems):
        given = {"layers": 8, "width": arguments.width, "batch": 16, "pause": 0.0}
        given["steps"] = arguments.updates * servers
        start = on_hosts(arguments.hosts, servers, arguments.rate)
        try:
            updates = measure(arguments, system, given, start)
        except RuntimeError as error:
            if system == "tfdist":
                raise
            print(error, file=sys.stderr)
            updates = []
        found.append({"system": system, "servers": servers, "updates": updates})
        print(found[-1], file=sys.stderr, flush=True)
    return found


def table(found: list[dict[str, Any]], count: str, arguments: argparse.Namespace) -> list[str]:
    """Updates per second by the number of workers or servers, in Markdown."""
    head = [count]
    for system in arguments.systems:
        head += [system, f"times those with {getattr(arguments, count)[0]}"]
    rows = []
    for number in getattr(arguments, count):
        cells = [str(number)]
        for system in arguments.systems:
            of_system = {r[count]: r["updates"] for r in found if r["system"] == system}
            first, own = of_system[getattr(arguments, count)[0]], of_system[number]
            cells.append(tables.with_quartiles(own, ".2f") if own else "failed")
            is_known = bool(first and own)
            cells.append(
                f"{statistics.median(own) / statistics.median(first):.2f}" if is_known else "–"
            )
        rows.append(cells)
    return tables.table(head, rows)


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    lines, measured = [], []
    if arguments.workers:
        found = with_workers(arguments)
        lines += [
            f"Updates per second. Each step takes {arguments.pause:g} s besides.",
            "",
            *table(found, "workers", arguments),
            "",
        ]
        measured += found
    if arguments.servers:
        found = with_servers(arguments)
        size = 4 * (8 * arguments.width**2) / 1e6
        lines += [
            f"Updates per second of a model of {size:.1f} MB with {arguments.hosts} workers, each "
            f"process on a host with a link of {arguments.rate}.",
            "",
            *table(found, "servers", arguments),
            "",
        ]
        measured += found
    lines.append(
        f"The median of {arguments.rounds} rounds (quartiles) in one job. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make "
        "benchmark-parameter-server-scaling`."
    )
    pages.publish(arguments, "parameter-server-scaling", "\n".join(lines), measured)


if __name__ == "__main__":
    main()
