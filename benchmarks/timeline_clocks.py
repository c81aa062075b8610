"""How exactly `tfdist.callbacks.Timeline` compares the clocks of ranks, and how long that takes.

The ranks are processes of one machine, over loopback, so their clocks are one. Timeline would know
that, so each rank says that it is a machine of its own. What is found as the offset is the true
error. It must not be larger than the error that Timeline states. Each job compares its clocks once,
as at the end of `fit`.

    python -m benchmarks.timeline_clocks              # about five minutes
    python -m benchmarks.timeline_clocks --systems multi_worker --ranks 2 --rounds 1
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import statistics
import sys

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables


@dataclasses.dataclass(frozen=True)
class System:
    """Ranks that compare their clocks.

    Attributes:
        strategy: the name of the strategy.
        options: of `tfdist run`.
    """

    strategy: str
    options: tuple[str, ...] = ()


SYSTEMS = {
    "multi_worker": System("multi_worker"),
    "horovod": System("horovod"),
    "multi_worker, elastic": System("multi_worker", ("--min", "1")),
    "horovod, elastic": System("horovod", ("--min", "1")),
}

# Of each job: the seconds it took, and for each rank but the first the offset and the stated error.
Found = list[dict]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="jobs for each row")
    pages.add_output_options(parser, pages.WATCHING_PAGE)
    return parser.parse_args()


def measure(system: System, ranks: int) -> dict:
    """What one job finds."""
    alone = os.geteuid() == 0
    start = runner.launched(ranks, system.strategy, *system.options, alone=alone)
    return runner.written("timeline_clocks_ranks", start=start)


def largest_ratio(found: Found) -> float:
    """The largest part that a true error is of the stated one."""
    return max(abs(offset) / error for job in found for offset, error in job["clocks"])


def row(name: str, ranks: int, found: Found) -> list[str]:
    """The cells of some jobs."""
    true = max(abs(offset) for job in found for offset, _ in job["clocks"])
    stated = max(error for job in found for _, error in job["clocks"])
    seconds = [job["seconds"] for job in found]
    cells = [f"{1000 * true:.3f} ms", f"{1000 * stated:.3f} ms", f"{largest_ratio(found):.2f}"]
    cells += [f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s"]
    return [name, str(ranks), *cells]


def table(found: dict[tuple[str, int], Found], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    text = (
        f"{arguments.rounds} jobs for each row, on one machine over loopback, whose ranks compare "
        "their clocks as if they were on several: the true offset is 0. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        f"`{options.made_by('timeline_clocks')}`."
    )
    head = ["strategy", "ranks", "largest true error", "largest stated error"]
    head += ["largest true / stated", "time (median)", "time (longest)"]
    rows = [row(*key, own) for key, own in found.items()]
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = {}
    for name, ranks in itertools.product(arguments.systems, arguments.ranks):
        found[name, ranks] = [measure(SYSTEMS[name], ranks) for _ in range(arguments.rounds)]
        print(f"{name}, {ranks} ranks: done", file=sys.stderr)
    measured = [[*key, own] for key, own in found.items()]
    pages.publish(arguments, "timeline_clocks", table(found, arguments), measured)
    if wrong := [key for key, own in found.items() if largest_ratio(own) > 1]:
        sys.exit(f"The true error is larger than the stated one: {wrong}")


if __name__ == "__main__":
    main()
