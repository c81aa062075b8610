"""Memory and traffic of an embedding that is divided among parameter servers.

A chief, workers and parameter servers on this machine train an embedding and a small layer. The
processes' peak memory is read from the kernel, phase by phase. So is what crosses their loopback
device, in a network of their own, which needs root.

- tfdist: `fit`, `evaluate`, `predict`, and the files of Keras;
- TensorFlow: its own strategy with the same partitioner, in the loop of its tutorial, with SGD, and
  its own checkpoints. Keras 3's layers and optimizers do not work on partitioned variables there.

    python -m benchmarks.large_embeddings                     # 10 minutes, 11 GB of memory
    python -m benchmarks.large_embeddings --rows 400000 --adam-rows 400000
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.common import machine, options, runner, tables

PAGE = pages.ROOT / "docs" / "parameter_server.md"
PROCESSES = ("chief", "worker", "ps")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table, with SGD")
    parser.add_argument("--adam-rows", type=int, default=4_000_000, help="with Adam")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="for files"
    )
    pages.add_output_options(parser, PAGE)
    return parser.parse_args()


def measure(arguments: argparse.Namespace, system: str, optimizer: str, rows: int) -> dict:
    """The phases of a system; see `large_embeddings_ranks.Watch`."""
    given = ["--system", system, "--optimizer", optimizer, "--rows", rows]
    for name in ("width", "servers", "batch", "steps", "folder"):
        given += [f"--{name}", getattr(arguments, name)]
    processes = 1 + arguments.workers
    servers = ("--ps", str(arguments.servers))
    start = runner.launched(processes, "parameter_server", *servers, alone=True)
    return runner.written("large_embeddings_ranks", *given, start=start)


def table(measured: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """A table for each run, in Markdown."""
    lines = [
        f"A table of rows of {arguments.width} float32 on {arguments.servers} parameter servers, "
        f"{arguments.workers} worker(s), batches of {arguments.batch} samples with 8 ids each, "
        "over loopback. Memory is the peak of a process; of several servers, the largest. In the "
        'row "start" the processes do nothing yet. What is sent is for a step, or for a file: '
        "TensorFlow's servers write a part of a checkpoint each, Keras' file is one. In brackets: "
        "memory, divided by that with TensorFlow. "
        f"{machine.measured_with('TensorFlow', 'Keras')}. Made by `make benchmark-embeddings`."
    ]
    head = ["phase", "chief, MB", "worker, MB", "server, MB", "sent, MB"]
    peers = {run["rows"]: run["phases"] for run in measured if run["system"] == "TensorFlow"}
    for run in measured:
        size = run["rows"] * arguments.width * 4 / 1e6
        title = f"**{run['system']}, {run['optimizer']}, {run['rows']:,} rows: {size:,.0f} MB.**"
        peer = peers.get(run["rows"], {}) if run["system"] == "tfdist" else {}
        rows = [_row(name, phase, peer.get(name)) for name, phase in run["phases"].items()]
        lines += ["", title, "", *tables.table(head, rows)]
    return "\n".join(lines)


def _row(name: str, phase: dict[str, Any], peer: dict[str, Any] | None) -> list[str]:
    cells = [name]
    for kind in PROCESSES:
        cells.append(_cell(phase["peak"][kind] / 1e6, peer and peer["peak"][kind] / 1e6))
    return [*cells, f"{phase['sent'] / 1e6:,.2f}"]


def _cell(value: float, peer: float | None) -> str:
    return f"{value:,.0f}" + (f" ({value / peer:.2f})" if peer else "")


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments()
    measured: list[dict[str, Any]] = []
    for system, optimizer, rows in (
        ("TensorFlow", "sgd", arguments.rows),
        ("tfdist", "sgd", arguments.rows),
        ("tfdist", "adam", arguments.adam_rows),
    ):
        phases = measure(arguments, system, optimizer, rows)
        run = {"system": system, "optimizer": optimizer, "rows": rows, "phases": phases}
        measured.append(run)
    pages.publish(arguments, "large-embeddings", table(measured, arguments), measured)


if __name__ == "__main__":
    main()
