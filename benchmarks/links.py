"""Time of one exchange of gradients between two hosts, by the speed of the link between them.

The hosts are network namespaces of this machine, and share its cores. The link is as fast as the
kernel can be, or limited by `tc` in both directions. The ranks have the threads and the allocator
that `tfdist run` sets. Each round does each exchange once, forwards and backwards in turn (ABBA),
with the same gradients. The time is that of the slower rank. The exchanges are:

- raw Horovod: `hvd.grouped_allreduce` of the gradients, also with Horovod's own compression;
- TensorFlow: `ReplicaContext.all_reduce` of all gradients, which is what a Keras optimizer calls;
- tfdist: what `tfdist.DistributedOptimizer` does, without compression and with some compressors.

Each exchange is compared with raw Horovod or TensorFlow, uncompressed. The ratio is the median of
the rounds' ratios: below 1, the exchange is faster. Network namespaces need root.

    python -m benchmarks.links                            # under ten minutes
    python -m benchmarks.links --backends horovod --rates 1gbit --rounds 2 --matrices 5
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

BACKENDS = ("horovod", "multi_worker")
UNLIMITED = "unlimited"
# How `tc` writes each rate, and how the table writes it.
LINKS = {UNLIMITED: "no limit", "1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}

# Seconds of each round, by system. The others are compared with the first system.
Times = dict[str, list[float]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rates", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--matrices", type=int, default=25, help="of 1.6 MB of float32")
    parser.add_argument("--rounds", type=int, default=5)
    pages.add_output_options(parser, pages.COMPRESSION_PAGE)
    return parser.parse_args()


def measure(backend: str, rate: str, matrices: int, rounds: int) -> Times:
    """What `links_ranks.py` measures on two hosts with such a link."""
    command = [sys.executable, "-m", "benchmarks.links_ranks", "--matrices", str(matrices)]
    command += ["--rounds", str(rounds), backend]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(2), **ALLOCATOR}
    limit = None if rate == UNLIMITED else rate
    # The slowest link takes half a second per matrix and round.
    deadline = 300 + 2 * matrices * rounds
    with tempfile.TemporaryDirectory() as folder, network.hosts(2, limit) as hosts:
        network.run_ranks(hosts, command, Path(folder), variables, deadline)
        return json.loads(Path(folder, "times.json").read_text())


def ratio(times: Times, system: str) -> float:
    """The median of the rounds' ratios to the first system."""
    peer = next(iter(times.values()))
    return statistics.median(own / theirs for own, theirs in zip(times[system], peer))


def table(found: dict[tuple[str, str], Times], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    head = ["backend", "exchange"]
    for rate in arguments.rates:
        head += [f"{LINKS[rate]}, ms", "ratio"]
    text = (
        f"{1.6 * arguments.matrices:g} MB of float32 gradients, {arguments.matrices} matrices of "
        "400 × 1000, standard normal; 2 hosts, which are network namespaces of one machine; "
        f"medians of {arguments.rounds} rounds, and of their ratios to the first row of the "
        f"backend. {machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        "`make benchmark-links`."
    )
    rows = []
    for backend in arguments.backends:
        for system in found[backend, arguments.rates[0]]:
            row = [f"`{backend}`", system]
            for rate in arguments.rates:
                times = found[backend, rate]
                row.append(f"{1000 * statistics.median(times[system]):.0f}")
                row.append(f"{ratio(times, system):.2f}")
            rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows, "ttn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    if reason := network.reason_against():
        sys.exit(f"The hosts cannot be made: {reason}")
    found = {}
    for backend, rate in itertools.product(arguments.backends, arguments.rates):
        found[backend, rate] = measure(backend, rate, arguments.matrices, arguments.rounds)
        print(f"{backend}, {LINKS[rate]}: done", file=sys.stderr)
    measured = [[*key, times] for key, times in found.items()]
    pages.publish(arguments, "links", table(found, arguments), measured)


if __name__ == "__main__":
    main()
