"""Exchanges between hosts with several replicas each: all replicas at once, or by host.

The hosts are network namespaces of this machine, and share its cores. With `multi_worker` each host
has one process with two virtual devices; with `horovod` it has two processes. Each round does each
exchange once, forwards and backwards in turn (ABBA), with the same gradients. The time is that of
the slowest rank. The bytes are those that left a host's interface, headers too. Network namespaces
need root.

    python -m benchmarks.hierarchy                        # under ten minutes
    python -m benchmarks.hierarchy --backends horovod --rates 100mbit --rounds 2 --megabytes 4
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
from benchmarks.links import LINKS, UNLIMITED
from tests.traffic import network
from tfdist import environment
from tfdist.launcher.ranks import ALLOCATOR, threads

BACKENDS = ("multi_worker", "horovod")
LOCAL = 2
ELEMENTS = 250_000

# By system: seconds and bytes of each round.
Found = dict[str, dict[str, list[float]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rates", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=20, help="of float32, 1 MB each")
    parser.add_argument("--rounds", type=int, default=5)
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def measure(
    backend: str, rate: str, hosts: int, tensors: int, rounds: int, elements: int = ELEMENTS
) -> Found:
    """What `hierarchy_ranks.py` measures on so many hosts with two replicas each."""
    command = [sys.executable, "-m", "benchmarks.hierarchy_ranks", "--tensors", str(tensors)]
    command += ["--elements", str(elements), "--rounds", str(rounds), backend]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(2), **ALLOCATOR}
    if backend == "multi_worker":
        variables[environment.DEVICES_PER_WORKER] = str(LOCAL)
    limit = None if rate == UNLIMITED else rate
    with tempfile.TemporaryDirectory() as folder, network.hosts(hosts, limit) as made:
        processes = 1 if backend == "multi_worker" else LOCAL
        ranks = [host for host in made for _ in range(processes)]
        deadline = 300 + 5 * tensors * rounds
        network.run_ranks(ranks, command, Path(folder), variables, deadline)
        return json.loads(Path(folder, "found.json").read_text())


def table(found: dict[tuple[str, str], Found], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    megabytes = arguments.megabytes * ELEMENTS * 4 / 1e6
    head = ["backend", "exchange", "bytes / M"]
    for rate in arguments.rates:
        head += [f"{LINKS[rate]}, ms", "ratio"]
    text = (
        f"M = {megabytes:g} MB of float32 gradients in {arguments.megabytes} tensors; "
        f"{arguments.hosts} hosts with {LOCAL} replicas each, which are network namespaces of one "
        "machine. Bytes are those that left one host, headers too, by M. Medians of "
        f"{arguments.rounds} rounds, and of their ratios to the first row of the backend. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by `make benchmark-hierarchy`."
    )
    rows = []
    for backend in arguments.backends:
        systems = found[backend, arguments.rates[0]]
        for system in systems:
            sent = statistics.median(systems[system]["bytes"]) / (1e6 * megabytes)
            row = [f"`{backend}`", system, f"{sent:.2f}"]
            for rate in arguments.rates:
                times = {n: own["seconds"] for n, own in found[backend, rate].items()}
                first = next(iter(times.values()))
                ratios = [own / theirs for own, theirs in zip(times[system], first)]
                row.append(f"{1000 * statistics.median(times[system]):.0f}")
                row.append(f"{statistics.median(ratios):.2f}")
            rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows, "ttn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    if reason := network.reason_against():
        sys.exit(f"The hosts cannot be made: {reason}")
    found = {}
    for backend, rate in itertools.product(arguments.backends, arguments.rates):
        found[backend, rate] = measure(
            backend, rate, arguments.hosts, arguments.megabytes, arguments.rounds
        )
        print(f"{backend}, {LINKS[rate]}: done", file=sys.stderr)
    measured = [[*key, own] for key, own in found.items()]
    pages.publish(arguments, "hierarchy", table(found, arguments), measured)


if __name__ == "__main__":
    main()
