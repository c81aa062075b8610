"""Time and bytes of all-reduces by several algorithms, beside the α–β model.

Each algorithm sums one vector of float32 over N ranks. All are made of TensorFlow's broadcasts in
groups of two ranks, and are called as tfdist calls its own engine: long vectors travel in pieces.
The peers are TensorFlow's ring (`CollectiveReduceV2`), as `multi_worker` uses it and with the whole
vector in one message, and Horovod's all-reduce. Horovod has a job of its own, since its background
thread would disturb the others; the jobs of a link and a number of ranks follow each other in
blocks, forwards and backwards in turn (ABBA), as do the systems of a job in each round.

The ranks are network namespaces of this machine, on links that `tc` limits, or processes that meet
over the loopback device. They share the cores. What the model calls too slow does not run, nor does
what would fill the memory. Namespaces need root.

    python -m benchmarks.algorithms                       # some hours on an idle machine
    python -m benchmarks.algorithms --links loopback --ranks 2 3 --sizes 1000 100000 --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.all_reduce import chart, plan, report
from benchmarks.common import options, runner
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads

SIZES = [10**power for power in range(3, 9)]
# Seconds that the ranks of a job may take.
DEADLINE = 3 * 3600
PLOT = pages.ROOT / "docs" / "images" / "exchange_algorithms.png"


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--links", nargs="+", choices=plan.LINKS, default=list(plan.LINKS))
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in bytes")
    parser.add_argument(
        "--algorithms", nargs="+", choices=plan.ALGORITHMS, default=list(plan.ALGORITHMS)
    )
    parser.add_argument("--backends", nargs="+", choices=plan.BACKENDS, default=plan.BACKENDS)
    parser.add_argument("--rounds", type=int, default=15, help="at most, of each block")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument(
        "--most-seconds", type=float, default=20.0, help="by the model, of what is measured"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write all rows to FILE")
    options.add_plot(parser, PLOT, "the ratios to TensorFlow's ring")
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def on_hosts(ranks: int, rate: str) -> Callable[[list[str]], None]:
    """A function for `runner.written` that runs a rank on each of so many hosts."""

    def start(command: list[str]) -> None:
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(ranks), **ALLOCATOR}
        with tempfile.TemporaryDirectory() as folder, network.hosts(ranks, rate) as hosts:
            whole = [*command, "--host"]
            network.run_ranks(hosts, whole, Path(folder), variables, DEADLINE)

    return start


def measure_job(link: str, ranks: int, backend: str, arguments: argparse.Namespace) -> Any:
    """What the ranks of one job measure."""
    given = ["--backend", backend, "--rounds", arguments.rounds, "--sizes", *arguments.sizes]
    given += ["--most-seconds", arguments.most_seconds, "--algorithms", *arguments.algorithms]
    rate = plan.LINKS[link].rate
    if rate is None:
        start = runner.launched(ranks, backend, alone=os.geteuid() == 0)
    else:
        start = on_hosts(ranks, rate)
    return runner.written("algorithms_ranks", *given, start=start)


def measure(link: str, ranks: int, arguments: argparse.Namespace) -> report.Cell:
    """What all jobs measure on such a link with so many ranks."""
    cell = report.Cell(link, ranks)
    for block, backend in runner.in_turn(arguments.backends, arguments.blocks):
        cell.add(block, measure_job(link, ranks, backend, arguments))
        print(f"{plan.LINKS[link].title}, {ranks} ranks, {backend}: done", file=sys.stderr)
    return cell


def main() -> None:
    """Measures, prints the tables, and writes the files that were asked for."""
    arguments = parse_arguments()
    limited = [link for link in arguments.links if plan.LINKS[link].rate]
    if limited and (reason := network.reason_against()):
        sys.exit(f"The hosts cannot be made: {reason}")
    cells = [
        measure(link, ranks, arguments)
        for link, ranks in itertools.product(arguments.links, arguments.ranks)
    ]
    if arguments.rows:
        arguments.rows.write_text(report.all_rows(cells), encoding="utf-8")
    text = report.summary(cells, arguments.blocks, arguments.rounds)
    if arguments.plot:
        chart.draw(cells, arguments.plot)
        text += f"\n\n![{chart.TITLE}](images/{arguments.plot.name})"
    pages.publish(arguments, "algorithms", text, [cell.as_json() for cell in cells])


if __name__ == "__main__":
    main()
