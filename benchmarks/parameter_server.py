"""Updates per second on a parameter server: TensorFlow's own loop, and tfdist's `fit`.

A chief, workers and one parameter server on this machine train dense layers. The two systems take
turns, in jobs that `tfdist run` starts:

- TensorFlow: the pattern of its tutorial, with `ClusterCoordinator.schedule`. A worker reads each
  variable and updates each one, by `assign_sub` or by TensorFlow's operation for Adam: Keras 3's
  optimizers do not work in that loop;
- tfdist: `fit`, without and with a policy against staleness.

    python -m benchmarks.parameter_server                     # hours: 216 jobs
    python -m benchmarks.parameter_server --layers 5 --workers 2 --jobs 1 --policies none
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

POLICIES = ("none", "InverseLR")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[5, 25, 80, 499])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adam"])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    help_of_updates = "in a round, for one variable; with n variables 1/n of them, but at least 100"
    parser.add_argument("--updates", type=int, default=60000, help=help_of_updates)
    parser.add_argument("--rounds", type=int, default=3, help="in each job")
    parser.add_argument("--jobs", type=int, default=3, help="of each system")
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    return parser.parse_args()


def variables(layers: int) -> int:
    """The number of variables of a model with so many layers before its last one."""
    return 2 * (layers + 1)


def measure(
    arguments: argparse.Namespace, row: dict[str, Any]
) -> dict[str, dict[str, list[float]]]:
    """Of each round, by system: updates per second, and the chief's milliseconds per update."""
    steps = max(100, arguments.updates // variables(row["layers"]))
    given = ["--layers", row["layers"], "--width", arguments.width, "--batch", arguments.batch]
    given += ["--steps", steps, "--rounds", arguments.rounds, "--optimizer", row["optimizer"]]
    start = runner.launched(1 + row["workers"], "parameter_server")
    found: dict[str, dict[str, list[float]]] = {}
    for _, name in runner.in_turn(["TensorFlow", *arguments.policies], arguments.jobs):
        chosen = ("TensorFlow", "none") if name == "TensorFlow" else ("tfdist", name)
        system = ["--system", chosen[0], "--policy", chosen[1]]
        result = runner.written("parameter_server_ranks", *given, *system, start=start)
        counted = result["updates"] / (steps * (1 + arguments.rounds))
        if name != "TensorFlow" and counted != 1:
            raise RuntimeError(f"tfdist counted {counted:.1%} of its updates")
        of_system = found.setdefault(name, {"updates": [], "chief": []})
        of_system["updates"] += [steps / seconds for seconds in result["seconds"]]
        of_system["chief"] += [1000 * seconds / steps for seconds in result["processor"]]
    return found


def table(measured: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A row for each model, number of workers and optimizer, in Markdown."""
    head = ["variables", "workers", "optimizer", "TensorFlow", "chief, ms"]
    for policy in arguments.policies:
        head += [f"tfdist, {policy}", "ratio", "chief, ms"]
    rows = []
    for row in measured:
        systems = row["systems"]
        peer = systems["TensorFlow"]["updates"]
        cells = [str(variables(row["layers"])), str(row["workers"]), row["optimizer"]]
        cells.append(tables.with_quartiles(peer, ".0f"))
        cells.append(_median(systems["TensorFlow"]["chief"]))
        for policy in arguments.policies:
            ours = systems[policy]["updates"]
            cells.append(tables.with_quartiles(ours, ".0f"))
            cells.append(f"{statistics.median(ours) / statistics.median(peer):.2f}")
            cells.append(_median(systems[policy]["chief"]))
        rows.append(cells)
    text = (
        "Updates per second, and what the chief's process computes for an update: the "
        f"median of {arguments.rounds * arguments.jobs} rounds (quartiles) "
        f"in {arguments.jobs} job(s) of each system. Dense layers of "
        f"{arguments.width}, batches of {arguments.batch}, one parameter server, over loopback. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make "
        "benchmark-parameter-server`."
    )
    return "\n".join([*tables.table(head, rows, "nntn"), "", text])


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}"


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = []
    for layers, workers, optimizer in itertools.product(
        arguments.layers, arguments.workers, arguments.optimizers
    ):
        row: dict[str, Any] = {"layers": layers, "workers": workers, "optimizer": optimizer}
        measured.append({**row, "systems": measure(arguments, row)})
        print(table(measured[-1:], arguments).splitlines()[2], file=sys.stderr, flush=True)
    pages.publish(arguments, "parameter-server", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
