"""The cost of keeping several processes equal: checksums, what replicas keep, weights for all.

Two processes train a model of 100 million parameters with Adam. A safety net that works in each
epoch is timed in `fit`, beside the steps. The others are timed by themselves:

- checks: after the callbacks of an epoch the processes compare checksums of all variables. One
  checksum is enough without callbacks that may set variables; with such callbacks it takes more;
- a callback that may save in the first process alone: what every replica keeps (here the residual
  of a compressor and the gradients of an unfinished accumulation) goes there only if it does;
- save: what every replica keeps goes to the first process;
- checks when `evaluate` or `predict` begins, in a loop of one's own, and of single batches;
- weights for all: all processes get the weights that one process has loaded.

    python -m benchmarks.safety_nets                    # some minutes, 10 GB of memory
    python -m benchmarks.safety_nets --layers 2 --width 50 --strategies multi_worker
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

STEPS = 100
SETS = ("plain", "compressed")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--layers", type=int, default=25, help="of WIDTH x WIDTH parameters")
    parser.add_argument("--width", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--strategies", nargs="+", default=["multi_worker", "horovod"])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    pages.add_output_options(parser, pages.PROCESSES_PAGE)
    return parser.parse_args()


def measure(strategy: str, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the two processes of one job measure."""
    given = ("--set", kind, "--layers", arguments.layers, "--width", arguments.width)
    given += ("--batch", arguments.batch)
    return runner.written("safety_nets_ranks", *given, start=runner.launched(2, strategy))


def table(measured: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A row for each safety net and strategy, in Markdown."""
    millions = arguments.layers * arguments.width**2 / 1e6
    head = ["net", "seconds", f"of an epoch of {STEPS} steps", "MB exchanged", "peak memory, MB"]
    rows = []
    for name, found in measured.items():
        epoch = STEPS * found["step"]
        for net, cost in found["nets"].items():
            row = [f"{name}: {net}", f"{cost['seconds']:.3f}"]
            row += [f"{100 * cost['seconds'] / epoch:.2f} %"]
            rows.append([*row, f"{cost['bytes'] / 1e6:.1f}", f"{cost['peak'] / 1e6:.0f}"])
    steps = ", ".join(f"{name} {found['step']:.2f} s" for name, found in measured.items())
    text = (
        f"{millions:.0f} M parameters ({4 * millions:.0f} MB) with Adam, batches of "
        f"{arguments.batch} in 2 processes; a step takes: {steps}. Memory is the growth of the "
        f"first process while the net runs. {machine.measured_with('TensorFlow', 'Keras')}. Made "
        "by `make benchmark-safety-nets`."
    )
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = {
        f"{strategy}, {kind}": measure(strategy, kind, arguments)
        for strategy in arguments.strategies
        for kind in arguments.sets
    }
    pages.publish(arguments, "safety-nets", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
