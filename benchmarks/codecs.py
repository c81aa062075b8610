"""Time and memory to encode and decode 25 million gradient elements, for every compressor.

The gradient is standard normal, as one tensor and as a hundred; compressors that see a variable's
shape get square matrices. Nothing travels: what was encoded is decoded as what one replica sent.
Error feedback, which is the same for all compressors, is not part of it. A plain copy, and
TensorFlow's own search for the largest 1 %, are measured beside them in the same rounds.

    python benchmarks/codecs.py                           # about ten minutes on an idle machine
    python benchmarks/codecs.py --systems copy topk --elements 1000000 --tensors 4 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pages

CELL_SCRIPT = Path(__file__).with_name("codecs_cell.py")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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


def run_cell(*options: object) -> dict[str, Any]:
    """What `codecs_cell.py` prints, run in a process of its own."""
    command = [sys.executable, str(CELL_SCRIPT), *map(str, options)]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr[-5000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings, versions, and a list of cells, one for each system and number of tensors."""
    elements = ("--elements", arguments.elements)
    chosen = ("--systems", *arguments.systems) if arguments.systems else ()
    timed = run_cell(
        "--tensors", *arguments.tensors, *elements, *chosen, "--rounds", arguments.rounds
    )
    cells = []
    for tensors, by_system in timed["times"].items():
        for system, seconds in by_system.items():
            memory = run_cell("--tensors", tensors, *elements, "--systems", system)
            cell = {"system": system, "tensors": int(tensors), "seconds": seconds}
            cells.append(cell | memory)
            print(f"{system}, {tensors} tensors: {_milliseconds(seconds)} ms", file=sys.stderr)
    settings = {"elements": arguments.elements, "rounds": arguments.rounds, "cpus": os.cpu_count()}
    return {"settings": settings, "versions": timed["versions"], "cells": cells}


def table(result: dict[str, Any]) -> str:
    """The Markdown text between the page's markers."""
    settings = result["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    size = 4 * settings["elements"]
    head = ["compressor", "tensors", "encode and decode, ms", "GB/s", "memory, MB"]
    head += ["payload, MB", "bytes ÷"]
    lines = [
        f"{size / 1e6:g} MB of float32, standard normal; medians of {settings['rounds']} rounds "
        "with their quartiles; peak memory beyond the gradient. Options are the defaults, except "
        "`dgc` with `ratio=0.01` and `threshold` with 2.0, which 4.6 % of the elements reach. "
        f"{versions}, {settings['cpus']} cores. Made by `make benchmark-codecs`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for cell in result["cells"]:
        payload = cell["payload_bytes"]
        row = [cell["system"], str(cell["tensors"]), _milliseconds(cell["seconds"])]
        row.append(f"{size / 1e9 / statistics.median(cell['seconds']):.3g}")
        row.append(f"{cell['extra_bytes'] / 1e6:.0f}")
        row.append("–" if payload is None else f"{payload / 1e6:.3g}")
        row.append(f"{size / payload:.3g}" if payload else "–")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _milliseconds(seconds: list[float]) -> str:
    """The median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles([1000 * value for value in seconds], n=4)
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def main() -> None:
    """Measures, prints the table, and writes what was asked for."""
    arguments = parse_arguments()
    result = measure(arguments)
    pages.publish(arguments, "codecs", table(result), result)


if __name__ == "__main__":
    main()
