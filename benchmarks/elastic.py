"""What an elastic job costs, and how long a lost rank holds the others up.

Two ranks train a model of 8.4 MB with Adam, with and without `--min`, in turn. They have a network
of their own, whose loopback device gives each rank the rate of a link. Then three ranks train, and
one of them is killed: the time until the next step has ended, less that of a usual step. With
`--restarts`, a new rank takes its place: the time until it has joined, and how long the step takes
in which it does; with `--spares`, that rank has imported TensorFlow before.

    python -m benchmarks.elastic                     # about ten minutes; needs root
    python -m benchmarks.elastic --engines multi_worker --jobs 1
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

JOBS = ("fixed", "elastic")
_MOST_STEPS = 100_000  # until another rank has taken the place of a killed one
# In which a rank is killed that is replaced: a process that was started in advance has imported
# TensorFlow then.
_LATE_STEP = 600


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    engines = ("multi_worker", "horovod")
    parser.add_argument("--engines", nargs="+", choices=engines, default=list(engines))
    parser.add_argument("--gigabits", type=float, default=1.0, help="per second, of each rank")
    parser.add_argument("--units", type=int, default=1024, help="of each layer")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2, help="of each kind")
    pages.add_output_options(parser, pages.ELASTIC_PAGE)
    return parser.parse_args()


def measure(engine: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The seconds of steps with and without `--min`, and of each recovery."""
    found: dict[str, Any] = {
        "fixed": [],
        "elastic": [],
        "recovery": [],
        "joined": [],
        "spare joined": [],
        "joining": [],
    }
    given = ["--units", arguments.units, "--steps", arguments.steps]
    rate = 2 * arguments.gigabits  # both ranks send through the one device
    for _, kind in runner.in_turn(JOBS, arguments.jobs):
        elastic = ["--min", "1"] if kind == "elastic" else []
        start = runner.launched(2, engine, *elastic, alone=True, gigabits=rate)
        steps = runner.written("elastic_ranks", *given, start=start)["seconds"]
        found[kind] += steps[len(steps) // 2 :]
    for _ in range(arguments.jobs):
        start = runner.launched(3, engine, "--min", "1", alone=True)
        killed = arguments.steps // 2
        steps = runner.written("elastic_ranks", *given, "--kill", killed, start=start)["seconds"]
        found["recovery"].append(max(steps[killed - 1 : killed + 2]) - statistics.median(steps))
        joined, joining = replaced(engine, given)
        found["joined"].append(joined)
        found["joining"].append(joining)
        found["spare joined"].append(replaced(engine, given, "--spares", "1")[0])
    return found


def replaced(engine: str, given: list[Any], *options: str) -> tuple[float, float]:
    """Trains until a rank that is killed is replaced; see `of_new_rank`."""
    more = [*given, "--kill", _LATE_STEP, "--until-replaced", "--steps", _MOST_STEPS]
    restarts = ("--min", "1", "--restarts", "1", *options)
    start = runner.launched(3, engine, *restarts, alone=True)
    return of_new_rank(runner.written("elastic_ranks", *more, start=start), _LATE_STEP)


def of_new_rank(steps: dict[str, Any], killed: int) -> tuple[float, float]:
    """Seconds from a rank's death until another one has joined, and for which its joining takes.

    Args:
        steps: the seconds of each step, and how many ranks it had.
        killed: the number of the step in which the rank is killed, from 1.
    """
    seconds, ranks = steps["seconds"], steps["ranks"]
    lost = ranks.index(2)
    joined = ranks.index(3, lost)
    return sum(seconds[killed : joined + 1]), seconds[joined] - statistics.median(seconds)


def table(measured: dict[str, Any], arguments: argparse.Namespace) -> str:
    """A row for each engine, in Markdown."""
    head = ["engine", "fixed, ms", "elastic, ms", "ratio", "lost rank to next update, s"]
    head += ["lost rank to new rank, s", "with --spares, s", "for which the others wait, s"]
    rows = []
    for engine, found in measured.items():
        fixed, elastic = ([1000 * s for s in found[kind]] for kind in JOBS)
        ratio = statistics.median(elastic) / statistics.median(fixed)
        times = [
            ", ".join(f"{seconds:.1f}" for seconds in found[name])
            for name in ("recovery", "joined", "spare joined", "joining")
        ]
        quartiles = [tables.with_quartiles(kind, ".0f") for kind in (fixed, elastic)]
        rows.append([engine, *quartiles, f"{ratio:.2f}", *times])
    megabytes = 4 * 2 * arguments.units**2 / 1e6
    text = (
        f"Milliseconds of a step, median (quartiles), of 2 ranks with {arguments.gigabits:g} "
        f"Gbit/s each; a model of {megabytes:.1f} MB, Adam. The other columns: one of 3 ranks is "
        "killed; how much longer than a usual one the step takes in which that happens, with the "
        "new trace; with --restarts, the time until a new rank has joined, which begins with the "
        "import of TensorFlow (with --spares that is done before), and how much longer the step "
        "takes in which it joins. "
        f"Jobs of each kind: {arguments.jobs}. {machine.measured_with('TensorFlow', 'Keras')}. "
        "Made by `make benchmark-elastic`."
    )
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = {engine: measure(engine, arguments) for engine in arguments.engines}
    pages.publish(arguments, "elastic", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
