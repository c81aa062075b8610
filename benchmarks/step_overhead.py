"""Step time, trace time and memory of `tfdist.MirroredStrategy` against TensorFlow's own.

Both run the train function of Keras' `model.fit` on virtual CPU devices, with a model so small that
a step is mostly overhead. Step times are medians over rounds. For each cell, one process measures
both strategies in turn (ABBA). The ratio of step times is the median of the rounds' ratios, with
its quartiles: a change of the machine's load disturbs it less than a ratio of medians. Trace time
(the first call of the train function) and peak memory are measured in a process for each cell and
strategy, plain first. A ratio is tfdist / plain: below 1, tfdist is better.

    python -m benchmarks.step_overhead                             # everything, under ten minutes
    python -m benchmarks.step_overhead --replicas 2 --variables 10 --rounds 10
    python -m benchmarks.step_overhead --timeline    # what tfdist.callbacks.Timeline costs instead
    python -m benchmarks.step_overhead --watch       # what a report and `tfdist run --watch` cost
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

STRATEGIES = ("plain", "tfdist")
# Name of the quantity, its unit in the table, and the factor from the measured unit to this unit.
QUANTITIES = (
    ("step_seconds", "step, ms", 1e3),
    ("trace_seconds", "trace, s", 1.0),
    ("peak_bytes", "memory, MB", 1e-6),
)


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--variables", type=int, nargs="+", default=[10, 300], help="even numbers")
    parser.add_argument("--steps-per-execution", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--optimizer", default="sgd", help="name of a Keras optimizer")
    parser.add_argument("--dynamic", action="store_true", help="leave the batch shape unknown")
    parser.add_argument("--rounds", type=int, default=40, help="timed rounds of each strategy")
    parser.add_argument("--round-seconds", type=float, default=0.05, help="least length of a round")
    parser.add_argument(
        "--timeline", action="store_true", help="prints steps with and without a Timeline instead"
    )
    parser.add_argument(
        "--watch", action="store_true", help="prints steps with and without a report instead"
    )
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    arguments = parser.parse_args()
    if any(count < 2 or count % 2 for count in arguments.variables):
        parser.error(f"--variables takes even numbers >= 2. Received: {arguments.variables}")
    if arguments.rounds < 1:
        parser.error(f"--rounds must be >= 1. Received: {arguments.rounds}")
    return arguments


def measure_cell(
    replicas: int, variables: int, steps_per_execution: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """All quantities of one cell, for each strategy; only an error for a strategy that crashes."""
    given = ["--replicas", replicas, "--variables", variables]
    given += ["--steps-per-execution", steps_per_execution]
    given += ["--optimizer", arguments.optimizer] + ["--dynamic"] * arguments.dynamic
    cell: dict[str, Any] = {
        "replicas": replicas,
        "variables": variables,
        "steps_per_execution": steps_per_execution,
    }
    for name in STRATEGIES:
        cell[name] = runner.printed("step_overhead_cell", name, *given)
    working = tuple(name for name in STRATEGIES if "error" not in cell[name])
    given += ["--rounds", arguments.rounds, "--round-seconds", arguments.round_seconds]
    times = runner.printed("step_overhead_cell", *working, *given) if working else {}
    for name, rounds in times.items():
        cell[name]["step_seconds"] = statistics.median(rounds)
        cell[name]["step_seconds_of_rounds"] = rounds
    cell["ratios"] = {name: ratios(cell, name) for name, _, _ in QUANTITIES}
    return cell


def ratios(cell: dict[str, Any], quantity: str) -> list[float] | None:
    """tfdist / plain, for each round or for the only one; None where a strategy crashed."""
    if any("error" in cell[name] for name in STRATEGIES):
        return None
    key = "step_seconds_of_rounds" if quantity == "step_seconds" else quantity
    plain, ours = (cell[name][key] for name in STRATEGIES)
    if not isinstance(plain, list):
        return [ours / plain]
    return [b / a for a, b in zip(plain, ours)]


def table(cells: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """The results as a Markdown table, with versions and machine."""
    shape = "unknown" if arguments.dynamic else "static"
    text = (
        f"Measured with {machine.measured_with('TensorFlow', 'Keras')}; {arguments.optimizer} "
        f"optimizer, {shape} batch shape, medians of {arguments.rounds} rounds; each ratio is "
        "tfdist / plain `tf.distribute.MirroredStrategy` (quartiles of the rounds)."
    )
    head = ["replicas", "variables", "steps per execution"]
    for _, title, _ in QUANTITIES:
        head += [f"{title}: plain", "tfdist", "ratio"]
    rows = []
    for cell in cells:
        row = [str(cell[key]) for key in ("replicas", "variables", "steps_per_execution")]
        for quantity, _, factor in QUANTITIES:
            row += [_value(cell[name], quantity, factor) for name in STRATEGIES]
            row.append(_ratio_text(cell["ratios"][quantity]))
        rows.append(row)
    errors = {cell[name]["error"] for cell in cells for name in STRATEGIES if "error" in cell[name]}
    notes = [f'\ncrashes: TensorFlow raises InvalidArgumentError, "{e}".' for e in sorted(errors)]
    return "\n".join([text, "", *tables.table(head, rows, "n"), *notes])


def _ratio_text(ratios: list[float] | None) -> str:
    """The ratio, followed by its quartiles; a dash if there is no ratio."""
    return "–" if ratios is None else tables.with_quartiles(ratios, ".2f")


def _value(result: dict[str, Any], quantity: str, factor: float) -> str:
    return "crashes" if "error" in result else f"{float(f'{result[quantity] * factor:.3g}'):g}"


def measure_more(
    names: tuple[str, str],
    called: str,
    replicas: int,
    variables: int,
    arguments: argparse.Namespace,
) -> str:
    """What the second of `names`, a step with what is `called`, adds to the first, in a line."""
    given = ["--replicas", replicas, "--variables", variables, "--steps-per-execution", 1]
    given += ["--optimizer", arguments.optimizer] + ["--dynamic"] * arguments.dynamic
    given += ["--rounds", arguments.rounds, "--round-seconds", arguments.round_seconds]
    measured = runner.printed("step_overhead_cell", *names, *given)
    without, noted = map(measured.get, names)
    more = [b - a for a, b in zip(without, noted)]
    return (
        f"{replicas} replicas, {variables} variables: a step of "
        f"{1e3 * statistics.median(without):.3g} ms takes "
        f"{tables.with_interval([1e6 * one for one in more], '.0f')} us more with {called}, which "
        f"is {tables.with_interval([100 * one / 0.02 for one in more], '.2f')} % of a step of "
        f"20 ms (in brackets, where the true median is in 95 of 100 cases)"
        f"{_epoch_ends_text(measured, names)}"
    )


def _epoch_ends_text(measured: dict[str, Any], names: tuple[str, str]) -> str:
    """What the end of an epoch costs more with the second of `names`; "" if that was not timed."""
    if "epoch_ends" not in measured:
        return ""
    without, noted = map(measured["epoch_ends"].get, names)
    more = statistics.median(b - a for a, b in zip(without, noted))
    return (
        f"; an epoch's end takes {1e3 * more:.2f} ms more (median of {len(noted)}), which is under "
        f"1 % of an epoch of more than {more / (0.01 * 0.02):.0f} steps of 20 ms"
    )


def main() -> None:
    """Measures all cells, prints the table and writes the files that were asked for."""
    arguments = parse_arguments()
    if arguments.timeline:
        for replicas, variables in itertools.product(arguments.replicas, arguments.variables):
            if replicas > 1:  # one replica has no timeline
                given = ("tfdist", "timeline"), "a Timeline", replicas, variables, arguments
                print(measure_more(*given), flush=True)
        return
    if arguments.watch:
        for replicas, variables in itertools.product(arguments.replicas, arguments.variables):
            given = ("fit", "watched"), "a report", replicas, variables, arguments
            print(measure_more(*given), flush=True)
        return
    grid = itertools.product(arguments.replicas, arguments.variables, arguments.steps_per_execution)
    cells = []
    for replicas, variables, steps in grid:
        cells.append(measure_cell(replicas, variables, steps, arguments))
        print(
            f"{replicas} replicas, {variables} variables, {steps} steps per execution: "
            f"step time ratio {_ratio_text(cells[-1]['ratios']['step_seconds'])}",
            file=sys.stderr,
        )
    settings = {"optimizer": arguments.optimizer, "dynamic": arguments.dynamic}
    settings["rounds"] = arguments.rounds
    measured = {"settings": settings, "cells": cells}
    pages.publish(arguments, "overhead", table(cells, arguments), measured)


if __name__ == "__main__":
    main()
