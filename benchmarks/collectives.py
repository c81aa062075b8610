"""Sums, gathers and sums of parts between hosts, beside the time that their bytes need.

The hosts are network namespaces of this machine behind links that `tc` limits, and share its cores.
All ranks begin together, and the time of the slowest counts: a rank that has all that it wants may
still have to send. The operations take turns. Needs root.

    python -m benchmarks.collectives              # about five minutes
    python -m benchmarks.collectives --backends horovod --ranks 2 --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import pages
from benchmarks.common import machine, options, tables
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads
from tfdist.plan.machine import link_of

BACKENDS = ("horovod", "multi_worker")
# A link of 100 Mbit/s: the bytes take so long that the cores hardly count.
RATE, BYTES_PER_SECOND = "100mbit", 12.5e6
# What a host sends per byte that it hands in, by the number of ranks.
SENT = {
    "sum": lambda ranks: 2 * (ranks - 1) / ranks,
    "gather": lambda ranks: ranks - 1,
    "sum of a part": lambda ranks: (ranks - 1) / ranks,
}
SYSTEMS = ("engine", "tfdist")

# Seconds of each round, by operation and system.
Times = dict[str, dict[str, list[float]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--size", type=int, default=4_000_000, help="bytes that a rank hands in")
    parser.add_argument("--rounds", type=int, default=10)
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def measure(backend: str, ranks: int, size: int, rounds: int) -> Times:
    """What `collectives_ranks.py` measures on so many hosts."""
    command = [sys.executable, "-m", "benchmarks.collectives_ranks", "--size", str(size)]
    command += ["--rounds", str(rounds), backend]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(2), **ALLOCATOR}
    with tempfile.TemporaryDirectory() as folder, network.hosts(ranks, RATE) as hosts:
        network.run_ranks(hosts, command, Path(folder), variables, deadline=600)
        return json.loads(Path(folder, "times.json").read_text())


def cell(seconds: list[float], bound: float) -> str:
    """The median in milliseconds, and how often the time that the bytes need it is."""
    if not seconds:
        return "–"
    median = statistics.median(seconds)
    return f"{1000 * median:.0f} ({median / bound:.2f})"


def table(found: dict[tuple[str, int], Times], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    link = link_of(BYTES_PER_SECOND, 0.0)
    text = (
        f"Each host hands in {arguments.size / 1e6:g} MB. Milliseconds of the engine's own "
        f"operation and of tfdist, medians of {arguments.rounds} rounds, and how many times what "
        "the bytes need at 100 Mbit/s (in brackets). "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by `make benchmark-collectives`."
    )
    head = ["backend", "hosts"]
    head += [f"{name}, {system}" for name in SENT for system in SYSTEMS]
    rows = []
    for (backend, ranks), times in found.items():
        row = [f"`{backend}`", str(ranks)]
        for name, sent in SENT.items():
            bound = sent(ranks) * arguments.size * link.beta
            row += [cell(times[name].get(system, []), bound) for system in SYSTEMS]
        rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    if reason := network.reason_against():
        sys.exit(f"The hosts cannot be made: {reason}")
    found = {}
    for backend, ranks in itertools.product(arguments.backends, arguments.ranks):
        found[backend, ranks] = measure(backend, ranks, arguments.size, arguments.rounds)
        print(f"{backend}, {ranks} hosts: done", file=sys.stderr)
    measured = [[*key, times] for key, times in found.items()]
    pages.publish(arguments, "collectives", table(found, arguments), measured)


if __name__ == "__main__":
    main()
