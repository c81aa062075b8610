"""Asynchronous training where one worker is slow, and where there are many workers.

Real processes on this machine, started by `tfdist run`, learn two small tasks: digits, dense layers
of 128 and 10 units on scikit-learn's scans, and linear, a linear function of 8 inputs without
noise. A gradient is computed from 16 samples. There are two questions:

- stragglers: one of 4 workers always takes five times as long for a step. How many updates per
  second does each policy of `tfdist.staleness` make, compared with the workers alone and with
  synchronous training? And how long does training take to a target loss? Runs go on after it, as
  rates need more seconds.
- divergence: 8 workers without delays, so each update is about 7 updates old. At a learning rate
  with which a single worker learns, which policies still learn?

Each step sleeps far longer than it computes. So the step times do not depend on the few cores of
this machine. A synchronous step sums 4 gradients and has 4 times the learning rate.

    python -m benchmarks.async_stragglers                       # about three quarters of an hour
    python -m benchmarks.async_stragglers --parts stragglers    # without the divergence
    python -m benchmarks.async_stragglers --quick               # a look at whether it works
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from typing import Any

from benchmarks import async_stragglers_report as report
from benchmarks import pages
from benchmarks.common import options, runner

PAGE = pages.ROOT / "docs" / "asynchronous.md"
IMAGES = pages.ROOT / "docs" / "images"

Runs = list[dict[str, Any]]

# The learning rate of one gradient, and the loss at which training ends.
STRAGGLERS = {"digits": (0.2, 0.2), "linear": (0.05, 1e-3)}
# The learning rate with many workers.
DIVERGENCE = {"digits": 0.7, "linear": 0.2}


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two workers, one seed, short delays")
    parser.add_argument("--tasks", nargs="+", choices=STRAGGLERS, default=list(STRAGGLERS))
    parser.add_argument("--policies", nargs="+", choices=report.POLICIES, metavar="POLICY")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, help="runs of each kind (default: 3)")
    parser.add_argument("--seconds", type=float, help="delay of a step (default: 0.08)")
    parser.add_argument(
        "--at-least", type=float, metavar="SECONDS", help="of a run with delays (default: 24)"
    )
    options.add_plot(parser, IMAGES, "the pictures")
    pages.add_output_options(parser, PAGE)
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.policies = arguments.policies or list(report.POLICIES)
    arguments.seeds = arguments.seeds or (1 if quick else 3)
    arguments.seconds = arguments.seconds or (0.01 if quick else 0.08)
    arguments.at_least = arguments.at_least or (0.2 if quick else 24)
    fast = 1 if quick else 3
    arguments.delays = [arguments.seconds] * fast + [5 * arguments.seconds]
    arguments.crowd = 2 if quick else 8
    arguments.batches = 40 if quick else 600
    return arguments


def run_job(engine: str, delays: list[float], runs: Runs) -> Runs:
    """The results of `runs` on so many workers.

    Args:
        engine: "parameter_server", which has a chief as one more process, or "multi_worker".
        delays: the seconds of each worker's step.
        runs: what `async_stragglers_ranks.py` runs, one after the other.
    """
    start = runner.launched(len(delays) + (engine == "parameter_server"), engine)
    given = (engine, "--runs", json.dumps(runs), "--delays", *delays)
    return runner.written("async_stragglers_ranks", *given, start=start)


def planned(
    task: str,
    policy: str,
    seed: int,
    learning_rate: float,
    gradients: int,
    parts: int = 1,
    target: float = 0.0,
    least: int = 0,
) -> dict[str, Any]:
    """A run for `run_job`.

    Args:
        task: the name of the task.
        policy: the name of the policy.
        seed: of the first weights and the order of the data.
        learning_rate: of one gradient.
        gradients: how many the run has if it does not come to its target.
        parts: how many of them are summed for an update.
        target: a loss.
        least: how many gradients the run has at least.
    """
    return {
        "policy": policy,
        "task": task,
        "seed": seed,
        "parts": parts,
        "learning_rate": parts * learning_rate,
        "target": target,
        "batches": max(3, gradients // parts),
        "least": least // parts,
    }


def alone(arguments: argparse.Namespace) -> Runs:
    """The results of each kind of worker on its own: ten seconds of the usual delays."""
    measured = []
    for delay in dict.fromkeys(arguments.delays):
        gradients = round(arguments.batches * arguments.seconds / delay / 5)
        runs = [
            planned(task, "none", 0, STRAGGLERS[task][0], gradients) for task in arguments.tasks
        ]
        results = run_job("parameter_server", [delay], runs)
        measured += [result | {"kind": "alone", "delay": delay} for result in results]
    return measured


def equal(arguments: argparse.Namespace) -> Runs:
    """The results of as many workers together if none is slow, once for each kind of step."""
    names = [name for name in report.EQUAL if name in arguments.policies]
    return together(arguments, "equal", arguments.delays[:1] * len(arguments.delays), names, 1)


def stragglers(arguments: argparse.Namespace) -> Runs:
    """The results of all workers together, under each policy."""
    given = arguments.delays, arguments.policies, arguments.seeds
    return together(arguments, "stragglers", *given)


def together(
    arguments: argparse.Namespace, kind: str, delays: list[float], policies: list[str], seeds: int
) -> Runs:
    """The results of workers with these delays, on both tasks.

    Args:
        arguments: of the command line.
        kind: what the results are called.
        delays: the seconds of each worker's step.
        policies: their names.
        seeds: the number of runs of each kind.
    """
    measured = []
    for engine, names in (
        ("parameter_server", [p for p in policies if p != report.WITHOUT_SERVERS]),
        ("multi_worker", [p for p in policies if p == report.WITHOUT_SERVERS]),
    ):
        runs = []
        for seed, task, name in itertools.product(range(seeds), arguments.tasks, names):
            learning_rate, target = STRAGGLERS[task]
            parts = len(delays) if name in report.SYNCHRONOUS else 1
            least = round(arguments.at_least * pace(delays, name))
            most = max(arguments.batches, least)
            runs.append(planned(task, name, seed, learning_rate, most, parts, target, least))
        if runs:
            measured += [result | {"kind": kind} for result in run_job(engine, delays, runs)]
    return measured


def pace(delays: list[float], policy: str) -> float:
    """Gradients per second of workers whose steps take no longer than their delays."""
    if policy in report.OF_THE_SLOWEST:
        return len(delays) / max(delays)
    return sum(1 / delay for delay in delays)


def divergence(arguments: argparse.Namespace) -> Runs:
    """The results of many equally fast workers under some policies, and of one worker alone."""
    measured: Runs = []
    for workers, names in ((1, report.COMPARED[:1]), (arguments.crowd, report.COMPARED)):
        runs = [
            planned(task, name, seed, DIVERGENCE[task], arguments.batches)
            for task in arguments.tasks
            for name in names
            for seed in range(arguments.seeds)
        ]
        results = run_job("parameter_server", [0.0] * workers, runs)
        measured += [result | {"kind": "divergence", "workers": workers} for result in results]
    return measured


# What is measured for each table.
PARTS = {"stragglers": (alone, equal, stragglers), "divergence": (divergence,)}


def main() -> None:
    """Measures, prints the tables, and writes the files that were asked for."""
    arguments = parse_arguments()
    measured: Runs = []
    for part in arguments.parts:
        for measure in PARTS[part]:
            measured += measure(arguments)
            print(f"{measure.__name__}: done", file=sys.stderr, flush=True)
    for part in arguments.parts:
        text = report.text(part, measured, arguments.delays)
        pages.publish(arguments, part, text, measured)
    if arguments.plot:
        arguments.plot.mkdir(parents=True, exist_ok=True)
        report.plot(measured, arguments.plot)


if __name__ == "__main__":
    main()
