"""How compressed training converges: loss against steps and bytes, for each compressor.

Small models learn on virtual CPU devices, which compress with the code of all backends:

- digits: a CNN on scikit-learn's scans of digits, 64 per step;
- mlp: dense layers of 256, 128 and 10 units on the same scans;
- mlp-slow: the same at a fifth of the learning rate;
- characters: the language model of examples/char_lm.py, smaller, with 64 pieces of text per step;
- characters-plain: the same without momentum, at three times the learning rate.

All other tasks use SGD with momentum 0.9; with DGC, the compressor has the momentum. The learning
rate suits training without compression, and is the same for all compressors. Bytes are what one
replica hands to the exchange: payloads, and variables that are too small to be compressed. Each
configuration runs in a process of its own, two at a time.

    python -m benchmarks.convergence                      # about an hour on two idle cores
    python -m benchmarks.convergence --quick              # a look at whether it works
    python -m benchmarks.convergence --tasks digits --compressors none topk --seeds 5
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import sys
from typing import Any

from benchmarks import convergence_report as report
from benchmarks import pages
from benchmarks.common import options, runner

PICTURE = pages.ROOT / "docs" / "images" / "convergence.png"
# Enough for the slower compressors to reach the target loss.
STEPS = {"digits": 660, "mlp": 660, "mlp-slow": 660, "characters": 300, "characters-plain": 300}
# Numbers of replicas; few for the characters, which take long.
REPLICAS = {
    "digits": [2, 4],
    "mlp": [2, 4],
    "mlp-slow": [4],
    "characters": [2],
    "characters-plain": [4],
}
QUICK = ["none", "topk 1 %"]

# What is run, by the name in the table: the options, and whether without and with error feedback.
# Signs by columns and the higher ranks are run with error feedback only, for comparison. DGC has
# error feedback of its own.
COMPRESSORS: dict[str, tuple[dict[str, Any] | None, list[bool]]] = {
    "none": (None, [False]),
    "fp16": ({"name": "fp16"}, [False, True]),
    "bf16": ({"name": "bf16"}, [False, True]),
    "int8": ({"name": "int8"}, [False, True]),
    "qsgd, 4 levels": ({"name": "qsgd", "levels": 4}, [False, True]),
    "terngrad": ({"name": "terngrad"}, [False, True]),
    "signsgd": ({"name": "signsgd"}, [False, True]),
    "signsgd, columns": ({"name": "signsgd", "scale": "column"}, [True]),
    "onebit": ({"name": "onebit"}, [False, True]),
    "topk 1 %": ({"name": "topk", "ratio": 0.01}, [False, True]),
    "randomk 1 %": ({"name": "randomk", "ratio": 0.01}, [False, True]),
    "threshold 0.001": ({"name": "threshold", "threshold": 0.001}, [False, True]),
    "dgc 1 %": ({"name": "dgc", "ratio": 0.01}, [False]),
    "powersgd, rank 1": ({"name": "powersgd", "rank": 1}, [False, True]),
    "powersgd, rank 2": ({"name": "powersgd", "rank": 2}, [True]),
    "powersgd, rank 4": ({"name": "powersgd", "rank": 4}, [True]),
}
# The models are small, and so are their layers.
MIN_BYTES = 256


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two replicas, one seed, few steps")
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--compressors", nargs="+", choices=COMPRESSORS, metavar="NAME")
    parser.add_argument(
        "--devices", type=int, nargs="+", help="numbers of replicas (default: 2 and 4, or one)"
    )
    parser.add_argument("--seeds", type=int, help="runs of each configuration (default: 3)")
    options.add_plot(parser, PICTURE, "the curves")
    pages.add_output_options(parser, pages.COMPRESSION_PAGE)
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.compressors = arguments.compressors or (QUICK if quick else list(COMPRESSORS))
    arguments.devices = arguments.devices or ([2] if quick else None)
    arguments.seeds = arguments.seeds or (1 if quick else 3)
    arguments.steps = {task: 100 if quick else steps for task, steps in STEPS.items()}
    return arguments


def run_cell(cell: dict[str, Any], steps: int, seeds: int) -> dict[str, Any] | None:
    """`cell` with what `convergence_cell.py` prints for it; None if that crashes.

    A crash only prints the errors. So the other results, of half an hour, are not lost.
    """
    config, _ = COMPRESSORS[cell["compressor"]]
    if config:
        config = config | {"error_feedback": cell["error_feedback"], "min_bytes": MIN_BYTES}
    given = ["convergence_cell", cell["task"], "--replicas", cell["replicas"]]
    given += ["--compression", json.dumps(config), "--steps", steps, "--seeds", seeds]
    try:
        result = cell | {"runs": runner.printed(*given, folders=[pages.ROOT / "examples"])}
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return None
    print(report.line(result), file=sys.stderr, flush=True)
    return result


def measure(arguments: argparse.Namespace) -> list[dict[str, Any] | None]:
    """All configurations with their runs, in the order of the table; None for those that crash."""
    cells = [
        {"task": task, "replicas": replicas, "compressor": name, "error_feedback": feedback}
        for task in arguments.tasks
        for replicas, name in itertools.product(
            arguments.devices or REPLICAS[task], arguments.compressors
        )
        for feedback in COMPRESSORS[name][1]
    ]

    def run(cell: dict[str, Any]) -> dict[str, Any] | None:
        return run_cell(cell, arguments.steps[cell["task"]], arguments.seeds)

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(run, cells))


def main() -> None:
    """Trains everything, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    measured = measure(arguments)
    results = [result for result in measured if result is not None]
    if not results:
        sys.exit("No configuration has run.")
    pages.publish(arguments, "convergence", report.text(results), results)
    if arguments.plot:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        report.plot(results, arguments.plot)
    if len(results) < len(measured):
        sys.exit(f"{len(measured) - len(results)} configurations have crashed.")


if __name__ == "__main__":
    main()
