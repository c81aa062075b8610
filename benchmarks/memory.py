"""`tfdist.memory.estimate`, beside the memory that training is measured to take.

Each model is trained on one device for three steps, in a process of its own. Measured is the peak
of resident memory, above the process when it has trained a very small model. A batch of one sample
tells what does not depend on the batch: mostly the graphs of the step, in Python and in TensorFlow.

    python -m benchmarks.memory                                       # ten minutes
    python -m benchmarks.memory --models cnn lstm --batch-sizes 128 --rounds 1
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables
from benchmarks.memory_cell import MODELS

# Batches like these take between 0.1 and 3 GB.
BATCH_SIZES = {
    "mlp": (1024, 8192),
    "cnn": (64, 256),
    "residual": (32, 128),
    "attention": (48, 192),
    "language_model": (32, 128),
    "lstm": (256, 1024),
}
Cell = tuple[str, int]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, help="default: two for each model")
    parser.add_argument("--rounds", type=int, default=3)
    pages.add_output_options(parser, pages.MEMORY_PAGE)
    return parser.parse_args()


def table(found: dict[Cell, list[dict[str, int]]], rounds: int) -> str:
    """The Markdown text between the page's markers."""
    rows, errors = [], []
    for (name, samples), results in found.items():
        if samples == 1:
            continue
        estimated, measured = _middle(results, "estimated"), _middle(results, "measured")
        of_one = found[name, 1]
        graphs = max(0.0, _middle(of_one, "measured") - _middle(of_one, "estimated"))
        errors.append((estimated + graphs) / measured - 1)
        what = (MODELS[name].__doc__ or "").rstrip(".")
        sizes = [f"{size / 1e6:.0f}" for size in (estimated, graphs, measured)]
        rows.append([what, str(samples), *sizes, f"{100 * errors[-1]:+.0f} %"])
    runs = "one run each" if rounds == 1 else f"medians of {rounds} runs"
    text = (
        f"One device, Adam; {runs}. Measured is the peak of a process while it "
        "trains, above what it has after it has trained a very small model. Graphs: what is more "
        "than estimated with a batch of one sample. Error: of the estimate with the graphs. Mean "
        f"error {100 * statistics.mean(map(abs, errors)):.0f} %, from {100 * min(errors):+.0f} to "
        f"{100 * max(errors):+.0f} %. {machine.measured_with('TensorFlow', 'Keras')}. "
        "Made by `make benchmark-memory`."
    )
    head = ["model", "batch", "estimated, MB", "graphs, MB", "measured, MB", "error"]
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def _middle(results: list[dict[str, int]], name: str) -> float:
    """The median of what was "estimated" or "measured", in bytes."""
    return statistics.median(result[name] for result in results)


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    # Large tensors go back to the system at once, so that resident memory is what is in use.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "1000000")
    found: dict[Cell, list[dict[str, int]]] = {}
    for _, name in itertools.product(range(arguments.rounds), arguments.models):
        for samples in (1, *(arguments.batch_sizes or BATCH_SIZES[name])):
            given = ("--model", name, "--batch-size", samples)
            result = runner.printed("memory_cell", *given)
            found.setdefault((name, samples), []).append(result)
            print(name, samples, result, file=sys.stderr)
    measured = [[*cell, results] for cell, results in found.items()]
    pages.publish(arguments, "memory", table(found, arguments.rounds), measured)


if __name__ == "__main__":
    main()
