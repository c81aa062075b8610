"""Time and memory to encode and decode 25 million gradient elements, for every compressor.

The gradient is standard normal, as one tensor and as a hundred tensors. Compressors that see a
variable's shape get square matrices. Nothing travels: the encoded gradient is decoded as if a
single replica had sent it. Error feedback is the same for all compressors and is left out. The same
rounds also measure a plain copy, and TensorFlow's own search for the largest 1 %.

    python -m benchmarks.codecs                           # about ten minutes on an idle machine
    python -m benchmarks.codecs --systems copy topk --elements 1000000 --tensors 4 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--systems", nargs="+", help="names of compressors, copy, top_k")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--tensors", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--rounds", type=int, default=11)
    pages.add_output_options(parser, pages.COMPRESSION_PAGE)
    arguments = parser.parse_args()
    if any(count < 1 or arguments.elements % count for count in arguments.tensors):
        parser.error(
            "--elements must be a multiple of --tensors. "
            f"Received: {arguments.elements} and {arguments.tensors}"
        )
    if arguments.rounds < 2:
        parser.error(f"--rounds must be >= 2. Received: {arguments.rounds}")
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings, and a list of cells, one for each system and number of tensors."""
    cell = ("codecs_cell", "--elements", arguments.elements, "--tensors")
    chosen = ("--systems", *arguments.systems) if arguments.systems else ()
    times = runner.printed(*cell, *arguments.tensors, *chosen, "--rounds", arguments.rounds)
    cells = []
    for tensors, by_system in times.items():
        for system, seconds in by_system.items():
            memory = runner.printed(*cell, tensors, "--systems", system)
            cell = {"system": system, "tensors": int(tensors), "seconds": seconds}
            cells.append(cell | memory)
            print(f"{system}, {tensors} tensors: {_milliseconds(seconds)} ms", file=sys.stderr)
    settings = {"elements": arguments.elements, "rounds": arguments.rounds}
    return {"settings": settings, "cells": cells}


def table(result: dict[str, Any]) -> str:
    """The Markdown text between the page's markers."""
    settings = result["settings"]
    size = 4 * settings["elements"]
    head = ["compressor", "tensors", "encode and decode, ms", "GB/s", "memory, MB"]
    head += ["payload, MB", "bytes ÷"]
    text = (
        f"{size / 1e6:g} MB of float32, standard normal; medians of {settings['rounds']} rounds "
        "with their quartiles; peak memory beyond the gradient. Options are the defaults, except "
        "`dgc` with `ratio=0.01` and `threshold` with 2.0, which 4.6 % of the elements reach. "
        f"{machine.measured_with('TensorFlow')}. Made by `make benchmark-codecs`."
    )
    rows = []
    for cell in result["cells"]:
        payload = cell["payload_bytes"]
        row = [cell["system"], str(cell["tensors"]), _milliseconds(cell["seconds"])]
        row.append(f"{size / 1e9 / statistics.median(cell['seconds']):.3g}")
        row.append(f"{cell['extra_bytes'] / 1e6:.0f}")
        row.append("–" if payload is None else f"{payload / 1e6:.3g}")
        row.append(f"{size / payload:.3g}" if payload else "–")
        rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows)])


def _milliseconds(seconds: list[float]) -> str:
    """The median, and the quartiles in brackets."""
    return tables.with_quartiles([1000 * value for value in seconds], ".3g")


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    result = measure(arguments)
    pages.publish(arguments, "codecs", table(result), result)


if __name__ == "__main__":
    main()
