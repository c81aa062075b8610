"""Sums of small tensors between the processes of `multi_worker`, beside TensorFlow's ring.

The ranks are processes of this machine, and share its cores: over loopback, or each on a host of
its own, which is a network namespace behind a link that `tc` limits. All ranks begin together, the
time of the slowest counts, and each sum is compared with the exact one. The two systems take turns.
Limited links need root.

    python -m benchmarks.small_sums              # about ten minutes
    python -m benchmarks.small_sums --links loopback --ranks 2 --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys

from benchmarks import pages
from benchmarks.algorithms import on_hosts
from benchmarks.all_reduce import plan
from benchmarks.common import machine, options, runner, tables

# By size and system, the seconds of each round.
Found = dict[str, dict[str, list[float]]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--links", nargs="+", choices=plan.LINKS, default=list(plan.LINKS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[4, 1000, 8000, 16_000, 32_000, 100_000, 160_000]
    )
    parser.add_argument("--rounds", type=int, default=40)
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def measure(link: str, ranks: int, arguments: argparse.Namespace) -> Found:
    """What so many ranks measure over a link."""
    kind = plan.LINKS[link]
    if kind.rate is None:
        start = runner.launched(ranks, plan.MULTI_WORKER, alone=os.geteuid() == 0)
    else:
        start = on_hosts(ranks, kind)
    given = ["--sizes", *arguments.sizes, "--rounds", arguments.rounds]
    return runner.written("small_sums_ranks", *given, start=start)


def cell(times: dict[str, list[float]]) -> str:
    """Milliseconds of TensorFlow and of tfdist, and the ratio with its quartiles."""
    theirs, own = times["TensorFlow"], times["tfdist"]
    low, middle, high = statistics.quantiles([o / t for o, t in zip(own, theirs)], n=4)
    both = " / ".join(f"{1000 * statistics.median(times[n]):.2f}" for n in times)
    return f"{both}, {middle:.2f} ({low:.2f}–{high:.2f})"


def table(found: dict[tuple[str, int], Found], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    text = (
        "Milliseconds of TensorFlow's ring and of tfdist (`multi_worker`), and the median of the "
        f"rounds' ratios (quartiles); below 1 tfdist is faster. {arguments.rounds} rounds. "
        f"{machine.measured_with('TensorFlow')}. Made by `make benchmark-small-sums`."
    )
    head = ["link", "ranks", *(f"{size} bytes" for size in arguments.sizes)]
    rows = [
        [plan.LINKS[link].title, str(ranks), *(cell(times) for times in own.values())]
        for (link, ranks), own in found.items()
    ]
    return "\n".join([text, "", *tables.table(head, rows, "tnt")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = {}
    for link, ranks in itertools.product(arguments.links, arguments.ranks):
        found[link, ranks] = measure(link, ranks, arguments)
        print(f"{link}, {ranks} ranks: done", file=sys.stderr)
    measured = [[*key, own] for key, own in found.items()]
    pages.publish(arguments, "small_sums", table(found, arguments), measured)


if __name__ == "__main__":
    main()
