"""Step time with one slow rank: even parts of each batch, and balanced parts.

Three ranks on this machine, started by `tfdist run`. For each of its samples a rank sleeps, so that
ranks do not slow each other down on few cores. Rank 2 sleeps three times as long as the others; in
the middle of training it becomes as fast as they are, and rank 0 becomes slow instead. The floor is
the time that a step would take if the samples were divided ideally and nothing else took time.

    python -m benchmarks.balance                     # about ten minutes
    python -m benchmarks.balance --engines multi_worker --steps 30
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

RANKS = 3
PARTS = ("even", "balanced")
# A step within this factor of the floor counts as balanced again after a change.
BALANCED = 1.15


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    engines = ("multi_worker", "horovod")
    parser.add_argument("--engines", nargs="+", choices=engines, default=list(engines))
    parser.add_argument("--seconds", type=float, default=2e-3, help="for a sample, of a fast rank")
    parser.add_argument("--slower", type=float, default=3.0, help="how many times, of a slow rank")
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--steps", type=int, default=50, help="before the change, and after it")
    parser.add_argument("--jobs", type=int, default=2, help="of each kind")
    pages.add_output_options(parser, pages.BALANCE_PAGE)
    return parser.parse_args()


def floor(arguments: argparse.Namespace) -> float:
    """The seconds of a step whose samples are divided in proportion to the ranks' speeds."""
    speeds = [1 / arguments.seconds] * (RANKS - 1) + [1 / (arguments.seconds * arguments.slower)]
    return arguments.batch / sum(speeds)


def measure(engine: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """For each kind of parts: seconds of steady steps, and steps until they are balanced again."""
    start = runner.launched(RANKS, engine)
    least = floor(arguments)
    found: dict[str, Any] = {parts: {"seconds": [], "follows": []} for parts in PARTS}
    for _, parts in runner.in_turn(PARTS, arguments.jobs):
        given = ["--parts", parts, "--seconds", arguments.seconds, "--slower", arguments.slower]
        given += ["--batch", arguments.batch, "--steps", arguments.steps]
        steps = runner.written("balance_ranks", *given, start=start)["seconds"]
        before, after = steps[: arguments.steps], steps[arguments.steps :]
        found[parts]["seconds"] += before[len(before) // 2 :]
        found[parts]["follows"].append(_first_balanced(after, BALANCED * least))
    return found


def _first_balanced(steps: list[float], limit: float) -> int | None:
    """The number of steps before the first of three that take at most `limit` seconds."""
    starts = range(len(steps) - 2)
    return next((n for n in starts if max(steps[n : n + 3]) <= limit), None)


def table(measured: dict[str, Any], arguments: argparse.Namespace) -> str:
    """A row for each engine, in Markdown."""
    least = 1000 * floor(arguments)
    head = [
        "engine",
        "even parts, ms",
        "balanced, ms",
        "ratio",
        "balanced by floor",
        "steps to follow",
    ]
    rows = []
    for engine, found in measured.items():
        even, balanced = ([1000 * s for s in found[parts]["seconds"]] for parts in PARTS)
        middle = statistics.median(balanced)
        follows = ", ".join("never" if n is None else str(n) for n in found["balanced"]["follows"])
        rows.append(
            [
                engine,
                tables.with_quartiles(even, ".0f"),
                tables.with_quartiles(balanced, ".0f"),
                f"{middle / statistics.median(even):.2f}",
                f"{middle / least:.2f}",
                follows,
            ]
        )
    text = (
        f"Milliseconds of a step, median (quartiles), of {RANKS} ranks; rank {RANKS - 1} takes "
        f"{arguments.slower:g} times as long for a sample, batches of {arguments.batch}. The floor "
        f"of balanced parts is {least:.0f} ms. Then another rank becomes slow instead: the last "
        f"column says after how many steps three steps in a row were within {BALANCED:g} times the "
        f"floor again, for each of {arguments.jobs} jobs. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-balance`."
    )
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = {engine: measure(engine, arguments) for engine in arguments.engines}
    pages.publish(arguments, "balance", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
