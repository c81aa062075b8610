"""Step time with `jit_compile=True` and without, on one device and on several replicas.

All systems train the same global batches with Adam, on the cores of this machine. A process trains
both kinds of steps in turn (ABBA). The ratio is compiled / not compiled, the median of the rounds'
ratios. What XLA costs once is the difference of the first calls, which trace and compile. In a
compiled step the exchange begins when all gradients are there. How much of the exchange is hidden
without XLA is in `benchmarks.side_by_side.overlap`.

    python -m benchmarks.compiled                      # some minutes, on an idle machine
    python -m benchmarks.compiled --rate 1gbit         # each replica is a host with such a link
    python -m benchmarks.compiled --engines mirrored --models mlp --rounds 2 --steps 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from benchmarks.side_by_side.rig import LINKS

ONE = "one device"
LAUNCHED = ("multi_worker", "horovod")
# Seconds of a launch on hosts.
DEADLINE = 600


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    engines = ("mirrored", *LAUNCHED)
    parser.add_argument("--engines", nargs="+", choices=engines, default=list(engines))
    parser.add_argument(
        "--rate", choices=LINKS, help="of the links of hosts, which need root; only several hosts"
    )
    parser.add_argument("--models", nargs="+", choices=("mlp", "cnn"), default=["mlp", "cnn"])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128, help="the global batch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    pages.add_output_options(parser, pages.PERFORMANCE_PAGE)
    return parser.parse_args()


def measure(engine: str, model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first calls and of the rounds' steps, compiled ("yes") and not ("no")."""
    given: list[object] = ["--engine", engine, "--model", model]
    for name in ("replicas", "width", "batch", "rounds", "steps"):
        given += [f"--{name}", getattr(arguments, name)]
    if engine in (ONE, "mirrored"):
        return runner.written("compiled_ranks", *given, start=runner.alone)
    start = runner.launched(arguments.replicas, engine)
    if arguments.rate:
        start = runner.on_hosts(arguments.replicas, arguments.rate, DEADLINE)
    return runner.written("compiled_ranks", *given, start=start)


def table(measured: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A row for each model and system, in Markdown."""
    head = ["model", "system", "step, ms", "compiled, ms", "ratio", "by one compiled device"]
    head += ["first call, s", "compiled, s"]
    rows = []
    for cell in measured:
        plain, compiled = cell["no"], cell["yes"]
        ratios = [b / a for a, b in zip(plain["steps"], compiled["steps"])]
        middle = statistics.median(compiled["steps"])
        alone = next(c for c in measured if c["model"] == cell["model"] and c["engine"] == ONE)
        engine = cell["engine"]
        rows.append(
            [
                cell["model"],
                engine if engine == ONE else f"{engine}, {arguments.replicas} replicas",
                f"{1e3 * statistics.median(plain['steps']):.3g}",
                f"{1e3 * middle:.3g}",
                tables.with_quartiles(ratios, ".2f"),
                f"{middle / statistics.median(alone['yes']['steps']):.2f}",
                f"{plain['first']:.1f}",
                f"{compiled['first']:.1f}",
            ]
        )
    on_link = ""
    if arguments.rate:
        on_link = f"Each replica is a host, whose link carries {LINKS[arguments.rate].title}. "
    text = (
        f"{on_link}Global batches of {arguments.batch}, width {arguments.width}, Adam; medians of "
        f"{arguments.rounds} rounds, ratios compiled / not compiled (quartiles). "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-compiled`."
    )
    return "\n".join([*tables.table(head, rows, "ttn"), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured = []
    for model in arguments.models:
        for engine in (ONE, *(e for e in arguments.engines if not arguments.rate or e in LAUNCHED)):
            found = measure(engine, model, arguments)
            measured.append({"model": model, "engine": engine, **found})
            print(f"{model}, {engine}: measured", file=sys.stderr)
    name = "compiled_on_a_link" if arguments.rate else "compiled"
    pages.publish(arguments, name, table(measured, arguments), measured)


if __name__ == "__main__":
    main()
