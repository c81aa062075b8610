"""Time and bytes of all-reduces by several algorithms, beside the α–β model.

Each algorithm sums one vector of float32 over N ranks. All are made of TensorFlow's broadcasts in
groups of two ranks, and are called as tfdist calls its own engine: long vectors travel in pieces.
The peers are TensorFlow's ring (`CollectiveReduceV2`), as `multi_worker` uses it and with the whole
vector in one message, and Horovod's all-reduce. The systems of a job take turns, in another order
in each round. Horovod has a job of its own right after, since its background thread would disturb
the others; with several blocks, the jobs run forwards and backwards in turn (ABBA).

Of each exchange the slowest rank's time counts, and each sum is compared with the exact one. The
ranks are network namespaces of this machine, on links that `tc` limits, or processes that meet over
the loopback device. They share the cores. What is hopeless does not run, nor what would fill the
memory (`all_reduce/plan.py`): it has the model's time only. Namespaces need root.

Each job is kept in out/algorithms.json when it ends. The next run goes on with the jobs that are
missing, and all tables are made of the jobs that are there.

    python -m benchmarks.algorithms                # under an hour on an idle machine with two cores
    python -m benchmarks.algorithms --minutes 20   # begins no job after that
    python -m benchmarks.algorithms --links loopback --ranks 2 3 --sizes 1000 100000 --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.all_reduce import chart, plan, report
from benchmarks.all_reduce.results import Job, Results
from benchmarks.common import options, runner
from tests.traffic import network
from tfdist.launcher.ranks import ALLOCATOR, threads
from tfdist.plan.alpha_beta import Link

SIZES = [10**power for power in range(3, 9)]
# What is the same in all jobs.
SETTINGS = ("sizes", "algorithms", "rounds", "size_seconds", "most_seconds")
# Seconds that the ranks of a job may take on links of their own.
DEADLINE = 1800
KEPT = pages.ROOT / "out" / "algorithms.json"
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
    parser.add_argument("--rounds", type=int, default=11, help="at most, of each block")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument(
        "--size-seconds", type=float, default=8.0, help="for the rounds of a size, if three fit"
    )
    parser.add_argument(
        "--most-seconds",
        type=float,
        default=2.0,
        help="what takes longer, and is far behind a ring, is left out or measured once",
    )
    parser.add_argument("--minutes", type=float, default=57.0, help="after which no job begins")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FILE", help="of all jobs")
    parser.add_argument("--fresh", action="store_true", help="forget the jobs that are kept")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write all rows to FILE")
    options.add_plot(parser, PLOT, "the ratios to TensorFlow's ring")
    pages.add_output_options(parser, pages.ALGORITHMS_PAGE)
    return parser.parse_args()


def on_hosts(ranks: int, link: plan.LinkKind) -> Callable[[list[str]], None]:
    """A function for `runner.written` that runs a rank on each of so many hosts."""

    def start(command: list[str]) -> None:
        variables = {"TF_CPP_MIN_LOG_LEVEL": "3", **threads(ranks), **ALLOCATOR}
        with (
            tempfile.TemporaryDirectory() as folder,
            network.hosts(ranks, link.rate, link.burst) as hosts,
        ):
            whole = [*command, "--host"]
            network.run_ranks(hosts, whole, Path(folder), variables, DEADLINE)

    return start


def measure(job: Job, link: Link | None, arguments: argparse.Namespace) -> Any:
    """What the ranks of one job measure.

    Args:
        job: which.
        link: what is known of the link; `multi_worker` measures it itself.
        arguments: of the command line.
    """
    given = ["--backend", job.backend]
    for name in SETTINGS:
        value = getattr(arguments, name)
        given += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    if link and job.backend != plan.MULTI_WORKER:
        given += ["--link", link.alpha, link.beta]
    kind = plan.LINKS[job.link]
    if kind.rate is None:
        start = runner.launched(job.ranks, job.backend, alone=os.geteuid() == 0)
    else:
        start = on_hosts(job.ranks, kind)
    return runner.written("algorithms_ranks", *given, start=start)


def wanted(arguments: argparse.Namespace) -> list[Job]:
    """All jobs, in their order."""
    return [
        Job(link, ranks, block, backend)
        for link, ranks in itertools.product(arguments.links, arguments.ranks)
        for block, backend in runner.in_turn(arguments.backends, arguments.blocks)
    ]


def measure_all(jobs: list[Job], results: Results, arguments: argparse.Namespace) -> None:
    """Runs the jobs that the results lack, as long as there is time; says how it goes."""

    def link(job: Job) -> Link | None:
        return results.cell(job.link, job.ranks).model_link

    def title(job: Job) -> str:
        return f"{results.cell(job.link, job.ranks).title}, {job.backend}"

    def progress(job: Job, found: Mapping[str, Any]) -> str:
        return report.progress(results.cell(job.link, job.ranks), found)

    results.fill(
        jobs, arguments.minutes, lambda job: measure(job, link(job), arguments), title, progress
    )


def main() -> int:
    """Measures, prints the tables, and writes the files that were asked for."""
    arguments = parse_arguments()
    limited = [link for link in arguments.links if plan.LINKS[link].rate]
    if limited and (reason := network.reason_against()):
        sys.exit(f"The hosts cannot be made: {reason}")
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    results, jobs = Results(arguments.kept, settings, arguments.fresh), wanted(arguments)
    measure_all(jobs, results, arguments)
    missing = [job for job in jobs if results.lacks(job)]
    places = dict.fromkeys((job.link, job.ranks) for job in jobs if job not in missing)
    if not places:
        sys.exit("Nothing was measured.")
    cells = [results.cell(*place) for place in places]
    if arguments.rows:
        arguments.rows.write_text(report.all_rows(cells), encoding="utf-8")
    text = report.summary(cells, arguments.blocks, arguments.rounds)
    if missing:
        text += f"\n\nNot measured yet: {len(missing)} of {len(jobs)} jobs."
    if arguments.plot:
        chart.draw(cells, arguments.plot)
        text += f"\n\n![{chart.TITLE}](images/{arguments.plot.name})"
    pages.publish(arguments, "algorithms", text, results.content)
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
