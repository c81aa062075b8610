"""Synchronous steps on a parameter server with one slow worker: parts, backups, dropped parts.

A chief, a parameter server and four workers on this machine, started by `tfdist run`. For each of
its samples a worker sleeps, so that workers do not slow each other down on few cores; the last
worker sleeps five times as long. All policies without `drop` give the weights of one device.

    python -m benchmarks.backup_workers              # some minutes
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

POLICIES = (
    "Synchronous()",
    "Synchronous(parts_per_worker=2)",
    "Synchronous(backup=True)",
    "Synchronous(parts_per_worker=2, backup=True)",
    "Synchronous(drop=1)",
    "Synchronous(parts_per_worker=2, drop=1)",
)


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4e-3, help="for a sample")
    parser.add_argument("--slower", type=float, default=5.0, help="how many times, the last worker")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2, help="of each policy")
    pages.add_output_options(parser, pages.PARAMETER_SERVER_PAGE)
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """For each policy: the seconds of all steps, and how many parts were in vain or dropped."""
    start = runner.launched(1 + arguments.workers, "parameter_server")
    found: dict[str, Any] = {}
    for _, policy in runner.in_turn(arguments.policies, arguments.jobs):
        given = ["--policy", policy, "--workers", arguments.workers, "--steps", arguments.steps]
        given += ["--seconds", arguments.seconds, "--slower", arguments.slower]
        given += ["--batch", arguments.batch]
        result = runner.written("backup_workers_ranks", *given, start=start)
        of_policy = found.setdefault(policy, {"seconds": [], "redundant": [], "dropped": []})
        of_policy["seconds"] += result["seconds"]
        for name in ("redundant", "dropped"):
            of_policy[name].append(result[name])
    return found


def table(measured: dict[str, Any], arguments: argparse.Namespace) -> str:
    """A row for each policy, in Markdown."""
    first = statistics.median(next(iter(measured.values()))["seconds"])
    rows = []
    for policy, found in measured.items():
        milliseconds = [1000 * seconds for seconds in found["seconds"]]
        ratio = statistics.median(found["seconds"]) / first
        counts = [f"{statistics.mean(found[name]):.2f}" for name in ("redundant", "dropped")]
        time = tables.with_quartiles(milliseconds, ".0f")
        rows.append([f"`{policy}`", time, f"{ratio:.2f}", *counts])
    text = (
        f"Milliseconds of a step, median (quartiles); {arguments.workers} workers, of which one "
        f"takes {arguments.slower:g} times as long for a sample; batches of {arguments.batch}, "
        f"{1000 * arguments.seconds:g} ms for a sample, {arguments.jobs} job(s) of each policy. "
        "The ratio is to the first row. Redundant parts of a batch were computed for nothing, also "
        "because they came too late; dropped parts were not trained on. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-backup-workers`."
    )
    head = ["policy", "step, ms", "ratio", "redundant parts per step", "dropped parts per step"]
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = measure(arguments)
    pages.publish(arguments, "backup-workers", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
