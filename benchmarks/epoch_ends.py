"""How long `fit` pauses between two epochs, beside Keras alone and TensorFlow's own strategy.

TensorFlow tunes the pipeline of each iterator in a thread, for which whoever deletes the iterator
may have to wait. tfdist's strategies turn this tuning off. Every launch trains a small model for
some epochs, and notes the time from an epoch's begin to the begin of its first batch, without the
first epoch. The last system is tfdist with the tuning that a user asks for.

    python -m benchmarks.epoch_ends --update     # about six minutes
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from benchmarks.epoch_ends_cell import SYSTEMS

# A pause that a user would notice, in seconds.
LONG = 0.1


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3, help="launches of each system")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500, help="of an epoch")
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    return parser.parse_args()


def table(measured: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """A row for each system, in Markdown."""
    head = ["system", "pauses over 0.1 s", "longest, s", "of the whole time", "`fit`, s"]
    rows = []
    for system, launches in measured.items():
        pauses = [pause for launch in launches for pause in launch["pauses"]]
        share = sum(pauses) / sum(launch["seconds"] for launch in launches)
        rows.append(
            [
                SYSTEMS[system].title,
                f"{sum(pause > LONG for pause in pauses)} of {len(pauses)}",
                f"{max(pauses):.2f}",
                f"{share:.0%}",
                f"{statistics.median(launch['seconds'] for launch in launches):.1f}",
            ]
        )
    text = (
        f"{arguments.epochs} epochs of {arguments.steps} steps, {arguments.rounds} launches of "
        f"each system. {machine.measured_with('TensorFlow', 'Keras')}. "
        "Made by `python -m benchmarks.epoch_ends`."
    )
    return "\n".join([*tables.table(head, rows, "tn"), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.systems}
    for number, name in runner.in_turn(arguments.systems, arguments.rounds):
        given = ("--epochs", arguments.epochs, "--steps", arguments.steps)
        measured[name].append(runner.printed("epoch_ends_cell", name, *given))
        print(f"round {number}, {SYSTEMS[name].title}: measured", file=sys.stderr)
    pages.publish(arguments, "epoch_ends", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
