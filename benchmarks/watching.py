"""What a report, TensorBoard's numbers and `tfdist run --watch` cost in a job of several ranks.

The ranks are processes of this machine. All of them train the same small model with and without
these, in turn (ABBA). At the end of an epoch they send each other what they have measured, so that
end is timed by itself. See step_overhead.py for the replicas of one process.

    python -m benchmarks.watching                     # about fifteen minutes
    python -m benchmarks.watching --strategies multi_worker --ranks 2 --rounds 4
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

STRATEGIES = ("multi_worker", "horovod")
STEP = 0.02  # seconds of the step that the goal speaks of


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--variables", type=int, default=10, help="an even number")
    parser.add_argument("--rounds", type=int, default=400, help="timed rounds with and without")
    parser.add_argument("--steps", type=int, default=25, help="of each round")
    pages.add_output_options(parser, pages.WATCHING_PAGE)
    return parser.parse_args()


def measure(strategy: str, ranks: int, arguments: argparse.Namespace) -> dict:
    """The seconds per step of each round, and those of each end of an epoch."""
    start = runner.launched(ranks, strategy, "--watch", alone=os.geteuid() == 0)
    given = ["--variables", arguments.variables, "--rounds", arguments.rounds]
    return runner.written("watching_ranks", *given, "--steps", arguments.steps, start=start)


def row(strategy: str, ranks: int, found: dict) -> list[str]:
    """The cells of one job."""
    without, watched = found["steps"]["fit"], found["steps"]["watched"]
    more = [b - a for a, b in zip(without, watched)]
    end, watched_end = (statistics.median(found["epoch_ends"][name]) for name in ("fit", "watched"))
    return [
        f"`{strategy}`",
        str(ranks),
        f"{1e3 * statistics.median(without):.2f} ms",
        f"{tables.with_interval([1e6 * one for one in more], '.0f')} µs",
        f"{tables.with_interval([100 * one / STEP for one in more], '.2f')} %",
        f"{1e3 * (watched_end - end):.1f} ms",
    ]


def table(found: dict[tuple[str, int], dict], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    text = (
        f"Medians of {arguments.rounds} rounds of {arguments.steps} steps; in brackets, where the "
        "true median of the rounds' differences is in 95 of 100 cases. A model of "
        f"{arguments.variables} variables, over loopback. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        f"`{options.made_by('watching')}`."
    )
    head = ["strategy", "ranks", "step without", "more with it", "of a step of 20 ms"]
    head += ["end of an epoch, more"]
    rows = [row(*key, own) for key, own in found.items()]
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = {}
    for key in itertools.product(arguments.strategies, arguments.ranks):
        found[key] = measure(*key, arguments)
        print(f"{key[0]}, {key[1]} ranks: done", file=sys.stderr)
    measured = [[*key, own] for key, own in found.items()]
    pages.publish(arguments, "watching", table(found, arguments), measured)


if __name__ == "__main__":
    main()
