"""What a snapshot of a job with parameter servers costs.

A chief, a worker and parameter servers on this machine train dense layers of 1,024 units with Adam,
4 MB of weights and 8 MB of Adam's averages in each layer. The chief writes the snapshots, or the
servers do.

    python -m benchmarks.snapshots
    python -m benchmarks.snapshots --layers 1 --servers 1
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

WRITERS = ("chief", "servers")
# What `tfdist.parameter_server.snapshots` does by default.
SECONDS, MOST = 60.0, 1 / 20


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--servers", type=int, nargs="+", default=[2])
    parser.add_argument("--snapshots", type=int, default=8, help="in each job, after the first")
    pages.add_output_options(parser, pages.PARAMETER_SERVER_PAGE)
    return parser.parse_args()


def table(measured: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A row for each size, number of servers and writer, in Markdown."""
    rows = []
    for row in measured:
        median = sorted(row["seconds"])[len(row["seconds"]) // 2]
        rows.append(
            [
                f"{row['bytes'] / 1e6:.0f} MB",
                str(row["servers"]),
                row["writer"],
                tables.with_quartiles([1000 * seconds for seconds in row["seconds"]], ".0f"),
                f"{row['bytes'] / median / 1e6:.0f}",
                f"{min(median / SECONDS, MOST):.2%}",
            ]
        )
    head = ["state", "servers", "who writes", "ms", "MB/s", "share of the time, by default"]
    text = (
        "The time for which the chief makes no update while a snapshot is taken: the median of "
        f"{arguments.snapshots} snapshots (quartiles). State: weights, Adam's averages, metrics "
        f"and counters. All processes on one machine, over loopback. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-snapshots`."
    )
    return "\n".join([*tables.table(head, rows, "nntnnn"), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured: list[dict[str, Any]] = []
    for layers, servers, writer in itertools.product(arguments.layers, arguments.servers, WRITERS):
        start = runner.launched(2, "parameter_server", "--ps", str(servers))
        given = ["--layers", layers, "--snapshots", arguments.snapshots, "--writer", writer]
        found = runner.written("snapshots_ranks", *given, start=start)
        measured.append({"layers": layers, "servers": servers, "writer": writer, **found})
        print(table(measured[-1:], arguments).splitlines()[2], file=sys.stderr, flush=True)
    pages.publish(arguments, "snapshots", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
