"""Whether an elastic job with many runs, deaths and new ranks uses ever more of the machine.

Three ranks train small models in many runs of `fit`. Again and again the last rank is killed, and a
new one takes its place, for which the others wait. After each run rank 0 notes what it and its
launcher use: resident memory, open descriptors and threads.

    python -m benchmarks.soak                            # 3,000 steps, 50 changes; half an hour
    python -m benchmarks.soak --engines multi_worker --fits 6
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

RANKS = 3
_MOST_DEATHS = 1000
_UNITS = ("MiB", "descriptors", "threads")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    engines = ("multi_worker", "horovod")
    parser.add_argument("--engines", nargs="+", choices=engines, default=list(engines))
    parser.add_argument("--fits", type=int, default=30)
    parser.add_argument("--steps", type=int, default=100, help="of each fit")
    parser.add_argument("--often", type=int, default=120, help="in how many steps a rank dies")
    pages.add_output_options(parser, pages.ELASTIC_PAGE)
    return parser.parse_args()


def measure(engine: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What rank 0 and its launcher use after each `fit`."""
    elastic = ["--min", str(RANKS), "--restarts", str(_MOST_DEATHS)]
    start = runner.launched(RANKS, engine, *elastic, alone=True)
    given = ["--fits", arguments.fits, "--steps", arguments.steps, "--often", arguments.often]
    return runner.written("soak_ranks", *given, start=start)


def table(measured: dict[str, list], arguments: argparse.Namespace) -> str:
    """A row for some of the runs of each engine, in Markdown."""
    head = ["engine", "after `fit`", "deaths"]
    names = [(who, what) for who in ("rank 0", "launcher") for what in _UNITS]
    head += [f"{who}: {what}" for who, what in names]
    rows = []
    for engine, found in measured.items():
        for place in sorted({0, len(found) // 3, 2 * len(found) // 3, len(found) - 1}):
            used = [f"{found[place][who][what]:.0f}" for who, what in names]
            rows.append([engine, str(place + 1), f"{found[place]['recoveries']:.0f}", *used])
    text = (
        f"{RANKS} ranks, {arguments.fits} runs of `fit` with {arguments.steps} steps; in each "
        f"{arguments.often}th step the last rank is killed, and a new one joins: two changes of "
        f"the group. {machine.measured_with('TensorFlow', 'Keras')}. Made by `make soak`."
    )
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = {engine: measure(engine, arguments) for engine in arguments.engines}
    pages.publish(arguments, "soak", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
