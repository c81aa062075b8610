"""Bytes for an update on a parameter server, by how the weights that workers read are compressed.

A chief, workers and one parameter server on this machine train dense layers, in a network of their
own, which needs root. The kernel counts all that crosses its loopback device: weights, gradients,
calls, answers, headers. The bound is what must travel without compression: all weights once, and
all gradients once.

    python -m benchmarks.pulled_weights                       # a minute
    python -m benchmarks.pulled_weights --pulls none int8 --width 1000
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

PULLS = ("none", "bf16", "int8", "topk")
WAYS = {"workers": "workers update", "chief": "the chief updates"}


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--pulls", nargs="+", default=list(PULLS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=500)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--frozen", type=int, default=0, help="so many of the layers")
    parser.add_argument("--steps", type=int, default=64, help="in an epoch")
    pages.add_output_options(parser, pages.PARAMETER_SERVER_PAGE)
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `pulled_weights_ranks` finds."""
    given: list[object] = ["--pulls", *arguments.pulls]
    for name in ("width", "layers", "frozen", "steps"):
        given += [f"--{name}", getattr(arguments, name)]
    start = runner.launched(1 + arguments.workers, "parameter_server", "--ps", "1", alone=True)
    return runner.written("pulled_weights_ranks", *given, start=start)


def table(found: dict[str, Any], arguments: argparse.Namespace) -> str:
    """A row for each compressor, in Markdown."""
    bound = found["bound"]
    head = ["`pull_compression`"]
    for way in WAYS.values():
        head += [f"{way}, bytes", "of them headers", "of the bound"]
    rows = []
    for pull in arguments.pulls:
        cells = [f"`{pull!r}`" if pull != "none" else "`None`"]
        for way in WAYS:
            sent = found["sent"][way][pull]
            headers = found["headers"][way][pull]
            cells += [f"{sent:,.0f}", f"{headers:,.0f}", f"{sent / bound:.2f}"]
        rows.append(cells)
    text = (
        f"Bytes that cross the loopback device for an update: {arguments.layers} dense layers of "
        f"{arguments.width} and one of 10, {arguments.workers} workers, one parameter server. The "
        f"bound, {bound:,} bytes, is all weights once and all gradients once. Headers are those of "
        "Ethernet, IP and TCP, also of packets that only confirm: 66 bytes each. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-pulled-weights`."
    )
    return "\n".join([*tables.table(head, rows), "", text])


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    found = measure(arguments)
    pages.publish(arguments, "pulled-weights", table(found, arguments), found)


if __name__ == "__main__":
    main()
