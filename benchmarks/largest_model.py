"""The largest model that trains within a limit of memory, on one device and with `sharding`.

A chain of equal Dense layers is trained with Adam for a few steps. Each rank is in a control group
of its own, which limits its memory from before the import of TensorFlow. Where Linux kills a rank
for its memory, the model is too large. The number of layers is searched for, and the first one to
try follows from `tfdist.memory.estimate`. Only root can make control groups.

Each search is kept in out/largest_model.json when it ends. The next run goes on with those that are
missing.

    python -m benchmarks.largest_model                # some hours
    python -m benchmarks.largest_model --ranks 2 --modes none parameters --width 1024 --gibibytes 1
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

import tfdist
from benchmarks import pages
from benchmarks.common import machine, memory_groups, options, runner, searching, tables
from benchmarks.common.kept import Kept
from benchmarks.sharding import MODES
from tfdist.launcher.ranks import ALLOCATOR

# A strategy, its number of ranks, and a mode.
Job = tuple[str, int, str]
ALONE: Job = ("mirrored", 1, "none")
KEPT = pages.ROOT / "out" / "largest_model.json"
PACKAGES = ("TensorFlow", "Keras", "Horovod")
SETTINGS = ("width", "gibibytes", "steps", "launches")
# All jobs, also that of one device, have what `tfdist run` sets otherwise.
VARIABLES = ALLOCATOR | runner.FREE_MEMORY_GOES_BACK


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument(
        "--strategies", nargs="+", choices=("multi_worker", "horovod"), default=["multi_worker"]
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--gibibytes", type=float, default=2.0, help="of memory for each rank")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--launches", type=int, default=10, help="at most, of each search")
    parser.add_argument("--timeout", type=int, default=1200, help="seconds of each launch")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FILE", help="of all searches")
    parser.add_argument("--fresh", action="store_true", help="forget the searches that are kept")
    pages.add_output_options(parser, pages.SHARDING_PAGE)
    return parser.parse_args()


def limit_of(arguments: argparse.Namespace) -> int:
    """The bytes that a rank may have."""
    return round(arguments.gibibytes * 2**30)


def guess(job: Job, found: Mapping[Job, Mapping[str, Any]], arguments: argparse.Namespace) -> int:
    """How many layers should fit, by the estimates and by what is found for a job that is near."""
    strategy, _, mode = job
    limit = limit_of(arguments)
    near = [one for one in found if (one[0], one[2]) == (strategy, mode)] or list(found)
    if near:
        # The estimate leaves out what a process needs without a model. What it says of the layers
        # that fit there is the limit without that.
        limit = _estimated(near[-1], arguments.width, found[near[-1]]["layers"])
    one, two = _of_one_and_two(job, arguments.width)
    return max(1, (limit - one) // (two - one) + 1)


def _estimated(job: Job, width: int, layers: int) -> int:
    """The estimated bytes of so many layers: all but the first add the same."""
    one, two = _of_one_and_two(job, width)
    return one + (layers - 1) * (two - one)


@functools.cache
def _of_one_and_two(job: Job, width: int) -> list[int]:
    """The estimated bytes of one layer and of two."""
    _, ranks, mode = job
    totals = []
    for layers in (1, 2):
        chain = [keras.layers.Dense(width, activation="tanh") for _ in range(layers)]
        model = keras.Sequential([keras.Input((width,)), *chain])
        model.compile("adam", "mse")
        sharding = None if mode == "none" else mode
        totals.append(tfdist.memory.estimate(model, ranks, sharding, ranks).total)
    return totals


def starting(job: Job, arguments: argparse.Namespace) -> Callable[[list[str]], None]:
    """Starts the processes of a job, for `runner.written`."""
    strategy, ranks, _ = job
    seconds = str(arguments.timeout)
    if job != ALONE:
        return runner.launched(ranks, strategy, "--timeout", seconds)
    return lambda command: runner.alone(["timeout", "--verbose", seconds, *command])


def trains(layers: int, job: Job, arguments: argparse.Namespace) -> bool:
    """Whether so many layers train within the limit.

    Raises:
        RuntimeError: when the job fails for another reason; the message has what the ranks said.
    """
    strategy, ranks, mode = job
    given = ["--strategy", strategy, "--sharding", mode, "--layers", layers]
    given += ["--width", arguments.width, "--steps", arguments.steps]
    with memory_groups.made() as group:
        given += ["--group", group, "--limit", limit_of(arguments)]
        try:
            runner.written("largest_model_ranks", *given, start=starting(job, arguments))
            fits = True
        except RuntimeError:
            if not memory_groups.has_killed(group):
                raise
            fits = False
    print(*job, layers, "trains" if fits else "does not fit", file=sys.stderr, flush=True)
    return fits


def measure(job: Job, first: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The largest number of layers, looked for from `first`, and how many weights they have."""
    fits = functools.partial(trains, job=job, arguments=arguments)
    layers, is_exact = searching.largest(fits, first, arguments.launches)
    weights = layers * arguments.width * (arguments.width + 1)
    return {"layers": layers, "weights": weights, "is_exact": is_exact}


def table(found: Mapping[Job, Mapping[str, Any]], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    head = ["strategy", "ranks", "`sharding`", "layers", "weights, M", "of one device", "of None"]
    text = (
        f"The most Dense layers of {arguments.width} units that train for {arguments.steps} steps "
        f"with Adam where each rank may have {arguments.gibibytes:g} GiB, TensorFlow included, and "
        "no swap. One more layer, and Linux kills a rank; ≥: the search ended before that. One "
        "launch of each size; one device is that of `mirrored`. "
        f"{machine.measured_with(*PACKAGES)}. Made by `make benchmark-largest-model`."
    )
    rows = []
    for (strategy, ranks, mode), one in found.items():
        sharding = "None" if mode == "none" else f'"{mode}"'
        name = "one device" if ranks == 1 else f"`{strategy}`"
        least = "" if one["is_exact"] else "≥ "
        row = [name, str(ranks), sharding, f"{least}{one['layers']}", f"{one['weights'] / 1e6:.0f}"]
        row += [_ratio(one, found.get(other)) for other in (ALONE, (strategy, ranks, "none"))]
        rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows, "tntn")])


def _ratio(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> str:
    return f"{one['layers'] / other['layers']:.2f}" if other and other["layers"] else "–"


def wanted(arguments: argparse.Namespace) -> list[Job]:
    """All jobs, in the order of the table."""
    modes = [mode for mode in MODES if mode in arguments.modes]
    return [
        ALONE,
        *(
            (strategy, ranks, mode)
            for strategy in arguments.strategies
            for ranks in arguments.ranks
            for mode in modes
        ),
    ]


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    if reason := memory_groups.reason_against():
        sys.exit(f"The ranks cannot be limited here: {reason}")
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    kept: Kept[Job] = Kept(arguments.kept, settings, PACKAGES, arguments.fresh)
    found: dict[Job, dict[str, Any]] = {}
    for job in wanted(arguments):
        if kept.lacks(job):
            kept.add(job, measure(job, guess(job, found, arguments), arguments))
        found[job] = next(one for known, one in kept.jobs() if known == list(job))
    text = table(found, arguments)
    pages.publish(arguments, "largest_model", text, kept.content)


if __name__ == "__main__":
    main()
