"""All-reduces by ranks that only sum (reduction servers), beside rings between the workers.

Each rank is a host of its own (a network namespace, which needs root) on a link of limited speed.
Of each system: the time of the slowest worker, as a part of the least that a ring between the
workers can take, 2(N-1)/N·M by the rate; and how busy the machine's cores were, which all hosts
share.

    python -m benchmarks.reduction_servers --update      # ten minutes
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from tests.traffic import network

# Bytes per second.
RATES = {"100mbit": 1.25e7, "1gbit": 1.25e8}
DEADLINE = 600.0


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--backends", nargs="+", default=["multi_worker", "horovod"])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reducers", type=int, nargs="+", default=[0, 4], help="0: a ring")
    parser.add_argument("--size", type=int, default=40_000_000, help="of the vector, in bytes")
    parser.add_argument(
        "--bucket-bytes", type=int, nargs="+", default=[4 * 2**20, 64 * 2**20], help="with reducers"
    )
    parser.add_argument("--rates", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--rounds", type=int, default=7)
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def jobs(arguments: argparse.Namespace, backend: str) -> list[tuple[int, int]]:
    """The numbers of reducers and the sizes of buckets that are measured with a backend."""
    first, *_ = sizes = arguments.bucket_bytes
    counts = arguments.reducers if backend == "multi_worker" else [0]
    return [(count, size) for count in counts for size in (sizes if count else [first])]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rounds of each rate, backend and number of reducers."""
    found = []
    for rate in arguments.rates:
        for backend in arguments.backends:
            for reducers, bucket in jobs(arguments, backend):
                given = ["--backend", backend, "--workers", arguments.workers]
                given += ["--size", arguments.size, "--rounds", arguments.rounds]
                start = runner.on_hosts(arguments.workers + reducers, rate, DEADLINE)
                name = "reduction_servers_ranks"
                rounds = runner.written(name, *given, "--bucket-bytes", bucket, start=start)
                row = {"rate": rate, "backend": backend, "reducers": reducers, "rounds": rounds}
                row["bucket_bytes"] = bucket
                found.append(row)
                print(row, file=sys.stderr, flush=True)
    return found


def table(found: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A row for each job, in Markdown."""
    head = [
        "link",
        "engine",
        "workers + reducers",
        "buckets, MiB",
        "ms",
        "÷ a ring's least",
        "cores busy",
    ]
    rows = []
    for row in found:
        least = 2 * (arguments.workers - 1) / arguments.workers * arguments.size
        least /= RATES[row["rate"]]
        seconds = [one["seconds"] for one in row["rounds"]]
        busy = [one["busy"] for one in row["rounds"]]
        rows.append(
            [
                row["rate"],
                f"`{row['backend']}`",
                f"{arguments.workers} + {row['reducers']}",
                f"{row['bucket_bytes'] / 2**20:g}",
                f"{1000 * statistics.median(seconds):.0f}",
                tables.with_quartiles([one / least for one in seconds], ".2f"),
                f"{statistics.median(busy):.0%}",
            ]
        )
    text = (
        f"A vector of {arguments.size / 1e6:g} MB; each rank is a host of its own. Medians "
        f"(quartiles) of {arguments.rounds} rounds. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by `make "
        "benchmark-reduction-servers`."
    )
    return "\n".join([*tables.table(head, rows, "tttnn"), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    if reason := network.reason_against():
        sys.exit(f"The hosts cannot be made: {reason}")
    found = measure(arguments)
    pages.publish(arguments, "reduction-servers", table(found, arguments), found)


if __name__ == "__main__":
    main()
