"""`tfdist.memory.estimate`, beside the memory that training is measured to take.

Each model is trained on one device for three steps, in a process of its own. Measured is the peak
of resident memory, above the process when it has trained a very small model.

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
    for (name, samples), measured in found.items():
        estimated = measured[0]["estimated"]
        middle = statistics.median(result["measured"] for result in measured)
        errors.append(estimated / middle - 1)
        what = (MODELS[name].__doc__ or "").rstrip(".")
        sizes = [f"{size / 2**20:.0f}" for size in (estimated, middle)]
        rows.append([what, str(samples), *sizes, f"{100 * errors[-1]:+.0f} %"])
    mean = statistics.mean(map(abs, errors))
    text = (
        f"One device, Adam; medians of {rounds} runs. Measured is the peak of a process while it "
        "trains, above what it has after it has trained a very small model. Mean error "
        f"{100 * mean:.0f} %, from {100 * min(errors):+.0f} to {100 * max(errors):+.0f} %. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-memory`."
    )
    head = ["model", "batch", "estimated, MiB", "measured, MiB", "error"]
    return "\n".join([text, "", *tables.table(head, rows, "tn")])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    # Large tensors go back to the system at once, so that resident memory is what is in use.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "1000000")
    found: dict[Cell, list[dict[str, int]]] = {}
    for _, name in itertools.product(range(arguments.rounds), arguments.models):
        for samples in arguments.batch_sizes or BATCH_SIZES[name]:
            given = ("--model", name, "--batch-size", samples)
            result = runner.printed("memory_cell", *given)
            found.setdefault((name, samples), []).append(result)
            print(name, samples, result, file=sys.stderr)
    measured = [[*cell, results] for cell, results in found.items()]
    pages.publish(arguments, "memory", table(found, arguments.rounds), measured)


if __name__ == "__main__":
    main()
