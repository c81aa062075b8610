"""Bytes that cross the loopback device in one exchange, compared with the bytes of the payloads.

The ranks exchange a gradient of 1 MB: with the engine's own all-reduce, uncompressed, and with a
compressor. The kernel's counter of the loopback device counts what really travels: payloads, calls,
acknowledgements, headers. It also counts other programs that use the device. Packets on loopback
have up to 64 kB. So the headers of an Ethernet, 66 of 1514 bytes, are not counted.

    python -m benchmarks.traffic                          # about two minutes
    python -m benchmarks.traffic --strategies horovod --ranks 2 --compressor topk
"""

from __future__ import annotations

import argparse
import itertools

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

ENGINES = {"multi_worker": "TensorFlow", "horovod": "Horovod"}

# Bytes per rank: "engine", "tfdist", "stated", and "idle" per second.
Found = dict[str, float]


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--strategies", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--compressor", default="signsgd")
    pages.add_output_options(parser, pages.COMPRESSION_PAGE)
    return parser.parse_args()


def measure(strategy: str, ranks: int, compressor: str) -> Found:
    """What `traffic_ranks.py` measures with so many ranks."""
    given = ("--strategy", strategy, "--compressor", compressor)
    return runner.written("traffic_ranks", *given, start=runner.launched(ranks, strategy))


def table(found: dict[tuple[str, int], Found], compressor: str) -> str:
    """The Markdown text between the page's markers."""
    head = ["engine", "ranks", "uncompressed", f"`{compressor}`", "ratio", "payloads"]
    head += ["beyond, per other rank", "idle, per second"]
    text = (
        "Bytes that a rank sends for 1 MB of float32, over loopback. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by `make benchmark-traffic`."
    )
    rows = []
    for (strategy, ranks), sent in found.items():
        beyond = (sent["tfdist"] - sent["stated"]) / (ranks - 1)
        row = [ENGINES[strategy], str(ranks), f"{sent['engine']:.0f}", f"{sent['tfdist']:.0f}"]
        row += [f"{sent['tfdist'] / sent['engine']:.3f}", f"{sent['stated']:.0f}"]
        row += [f"{beyond:.0f}", f"{sent['idle']:.0f}"]
        rows.append(row)
    return "\n".join([text, "", *tables.table(head, rows)])


def main() -> None:
    """Measures, prints the table, and writes the files that were asked for."""
    arguments = parse_arguments()
    found = {
        (strategy, ranks): measure(strategy, ranks, arguments.compressor)
        for strategy, ranks in itertools.product(arguments.strategies, arguments.ranks)
    }
    measured = [[*key, sent] for key, sent in found.items()]
    pages.publish(arguments, "operations", table(found, arguments.compressor), measured)


if __name__ == "__main__":
    main()
