"""What compressors need to decode a further payload, by what they need for one, with its encoding.

Where payloads are gathered, each replica decodes those of all. The same gradient is encoded once
and decoded as if one replica had sent it, and as if two had, in turn. 100 MB of float32, standard
normal, in a hundred tensors.

    python -m benchmarks.payloads                # about five minutes
    python -m benchmarks.payloads --systems topk --elements 1000000 --tensors 4 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics

import tfdist
from benchmarks import pages
from benchmarks.codecs_cell import OPTIONS, TWICE
from benchmarks.common import machine, options, runner, tables


def gathered() -> list[str]:
    """The compressors whose payloads each replica gets from all."""
    found = [
        (name, tfdist.compression.get(name, **OPTIONS.get(name, {})))
        for name in tfdist.compression.available()
    ]
    return [name for name, compressor in found if compressor.aggregation == "gather"]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=gathered(), default=gathered())
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=11)
    pages.add_output_options(parser, pages.COMPRESSION_PAGE)
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """By compressor, the shares of all rounds."""
    systems = [name for each in arguments.systems for name in (each, f"{each}{TWICE}")]
    cell = ("codecs_cell", "--elements", arguments.elements, "--tensors", arguments.tensors)
    times = runner.printed(*cell, "--systems", *systems, "--rounds", arguments.rounds)
    seconds = times[str(arguments.tensors)]
    return {
        name: [two / one - 1 for one, two in zip(seconds[name], seconds[f"{name}{TWICE}"])]
        for name in arguments.systems
    }


def table(found: dict[str, list[float]], arguments: argparse.Namespace) -> str:
    """The Markdown text between the page's markers."""
    text = (
        "What a further payload takes to decode, by what one takes with its encoding: medians of "
        f"{arguments.rounds} rounds, with quartiles. {4e-6 * arguments.elements:g} MB of float32 "
        f"in {arguments.tensors} tensors. {machine.measured_with('TensorFlow')}. Made by "
        "`make benchmark-payloads`."
    )
    rows = [[name, tables.with_quartiles(shares, ".2f")] for name, shares in found.items()]
    return "\n".join([text, "", *tables.table(["compressor", "a further payload"], rows)])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = measure(arguments)
    medians = {name: statistics.median(shares) for name, shares in found.items()}
    pages.publish(arguments, "payloads", table(found, arguments), medians)


if __name__ == "__main__":
    main()
