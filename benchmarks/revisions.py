"""Step time and exchange of two revisions of tfdist, side by side: which one is faster.

The package of each revision is put into a folder of its own. The same scripts measure both
revisions, and use only what is public in both. For each cell, a launch starts the processes of both
revisions, which then take turns (ABBA). A round has one ratio, new / old. Below 1, the new revision
is faster.

- step: the train function of `model.fit` on two virtual devices, with a model of 10 or 300
  variables that is so small that a step is mostly overhead;
- exchange: `DistributedOptimizer.apply` in two processes, with 25 or 1000 gradients, 25 MB in all.

The interval is the 95 % interval of the median, if rounds are independent. The rounds of one launch
may not be independent, so the lowest and the highest median of a launch are given too.

    python -m benchmarks.revisions --old v0.1 --new HEAD       # a quarter of an hour
    python -m benchmarks.revisions --old HEAD~5 --cells "step, 10 variables" --launches 1
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from benchmarks.common.turns import Measuring, measuring

NAMES = ("old", "new")
# How far the sums of both revisions may differ: they may add in another order.
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured.

    Attributes:
        options: the options of `revisions_cell.py`.
        engine: the strategy with which `tfdist run` starts two processes; None for one process.
    """

    options: tuple[str, ...]
    engine: str | None = None

    def command(self) -> list[str]:
        """The command that starts what is measured."""
        module = ["-m", "benchmarks.revisions_cell", *self.options]
        if self.engine is None:
            return [sys.executable, *module]
        launcher = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", self.engine]
        return [*launcher, *module, "--engine", self.engine]


CELLS = {
    **{f"step, {n} variables": Cell(("--variables", str(n))) for n in (10, 300)},
    **{
        f"exchange, {engine}, {n} gradients": Cell(("--gradients", str(n)), engine)
        for engine in ("multi_worker", "horovod")
        for n in (25, 1000)
    },
}

# Milliseconds of a step, by the revision's name, for each round of each launch.
Launch = dict[str, list[float]]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--old", required=True, help="a revision, as git names it")
    parser.add_argument("--new", default="HEAD")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL")
    parser.add_argument("--launches", type=int, default=4, help="of each cell")
    parser.add_argument("--rounds", type=int, default=40, help="of each launch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    arguments = parser.parse_args()
    if arguments.launches < 1 or arguments.rounds < 1:
        parser.error(
            "--launches and --rounds must be >= 1. "
            f"Received: {arguments.launches} and {arguments.rounds}"
        )
    return arguments


def git(*arguments: str) -> bytes:
    """The output of git for this checkout."""
    done = subprocess.run(["git", *arguments], cwd=pages.ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)} failed: {done.stderr.decode().strip()}")
    return done.stdout


def unpack(revision: str, folder: Path) -> str:
    """Puts the package of a revision into `folder`. Returns the revision's short hash."""
    commit = git("rev-parse", "--verify", "--short", f"{revision}^{{commit}}").decode().strip()
    folder.mkdir()
    files = git("archive", commit, "tfdist")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
    return commit


@contextlib.contextmanager
def both(cell: Cell, trees: Mapping[str, Path], rounds: int) -> Iterator[dict[str, Measuring]]:
    """The processes of both revisions, ready to measure.

    Raises:
        RuntimeError: when a process imports another tfdist than its own, or when the two compute
            different results.
    """
    with contextlib.ExitStack() as stack:
        command = [*cell.command(), "--rounds", str(rounds)]
        started = {
            name: stack.enter_context(measuring(command, tree, runner.environment(tree)))
            for name, tree in trees.items()
        }
        for name, tree in trees.items():
            found = started[name].found
            if not Path(found["package"]).is_relative_to(tree):
                raise RuntimeError(f"{name} must be of {tree}. Received: {found['package']}")
        old, new = (started[name].found["result"] for name in NAMES)
        if abs(old - new) > TOLERANCE * max(abs(old), abs(new)):
            raise RuntimeError(f"The revisions must compute the same. Received: {old} and {new}")
        yield started


def launch(cell: Cell, trees: Mapping[str, Path], rounds: int) -> Launch:
    """Starts both revisions once, and measures all rounds."""
    seconds: Launch = {name: [] for name in NAMES}
    with both(cell, trees, rounds) as started:
        calls = max(one.found["calls"] for one in started.values())
        for _, name in runner.in_turn(NAMES, rounds):
            seconds[name].append(1000 * started[name].seconds(calls))
    return seconds


def ratios(one: Launch) -> list[float]:
    """New / old of each round."""
    return [new / old for old, new in zip(one["old"], one["new"])]


def row(name: str, launches: Sequence[Launch]) -> list[str]:
    """The cells of the table's row."""
    times = [
        f"{statistics.median(value for one in launches for value in one[which]):.3g}"
        for which in NAMES
    ]
    found = [ratio for one in launches for ratio in ratios(one)]
    low, high = tables.interval(found)
    medians = [statistics.median(ratios(one)) for one in launches]
    ratio = f"{statistics.median(found):.3f}"
    spans = (f"{low:.3f}–{high:.3f}", f"{min(medians):.3f}–{max(medians):.3f}")
    return [name, *times, ratio, *spans]


def main() -> None:
    """Measures, and prints the table."""
    arguments = parse_arguments()
    measured: dict[str, list[Launch]] = {}
    with tempfile.TemporaryDirectory(prefix="tfdist-revisions-") as made:
        trees = {name: Path(made, name) for name in NAMES}
        commits = [unpack(getattr(arguments, name), tree) for name, tree in trees.items()]
        for name in arguments.cells:
            measured[name] = []
            for _ in range(arguments.launches):
                measured[name].append(launch(CELLS[name], trees, arguments.rounds))
                print(" | ".join(row(name, measured[name])), file=sys.stderr, flush=True)
    head = ["cell", *(f"{n} ({c}), ms" for n, c in zip(NAMES, commits))]
    head += ["new / old", "95 %", "medians of launches"]
    packages = ["TensorFlow", "Keras"] + ["Horovod"] * any("horovod" in name for name in measured)
    print(f"{arguments.launches} launches of {arguments.rounds} rounds; medians. ", end="")
    print(f"{machine.measured_with(*packages)}.\n")
    print("\n".join(tables.table(head, [row(*found) for found in measured.items()])))
    if arguments.json:
        arguments.json.write_text(json.dumps(dict(zip(NAMES, commits)) | {"launches": measured}))


if __name__ == "__main__":
    main()
