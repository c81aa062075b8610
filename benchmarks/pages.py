"""What benchmarks write: a file with all measurements, and a table in a page of the project."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
EQUIVALENCE_PAGE = ROOT / "docs" / "equivalence.md"
PERFORMANCE_PAGE = ROOT / "docs" / "performance.md"
COMPRESSION_PAGE = ROOT / "docs" / "compression.md"
PARAMETER_SERVER_PAGE = ROOT / "docs" / "parameter_server.md"
BALANCE_PAGE = ROOT / "docs" / "balance.md"
FAULTS_PAGE = ROOT / "docs" / "faults.md"
LOCAL_STEPS_PAGE = ROOT / "docs" / "local_steps.md"
ELASTIC_PAGE = ROOT / "docs" / "elastic.md"
ALGORITHMS_PAGE = ROOT / "docs" / "exchange_algorithms.md"
PROCESSES_PAGE = ROOT / "docs" / "multi_process.md"
MEMORY_PAGE = ROOT / "docs" / "memory.md"
SHARDING_PAGE = ROOT / "docs" / "sharding.md"
MODEL_PARALLEL_PAGE = ROOT / "docs" / "model_parallel.md"
WATCHING_PAGE = ROOT / "docs" / "watching.md"
CLUSTER_PAGE = ROOT / "docs" / "check_a_cluster.md"


def add_output_options(parser: argparse.ArgumentParser, page: Path) -> None:
    """Adds the options `--json FILE` and `--update [FILE]`, by default `page`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    parser.add_argument(
        "--update",
        dest="page",
        type=Path,
        nargs="?",
        const=page,
        metavar="FILE",
        help=f"put the table into FILE (default: the project's {page.relative_to(ROOT)})",
    )


def publish(arguments: argparse.Namespace, table: str, text: str, measured: Any) -> None:
    """Prints a table, and writes it and all measurements where the command line wants them.

    Args:
        arguments: with the options of `add_output_options`.
        table: as for `update`.
        text: as for `update`.
        measured: what goes into the file of the measurements.
    """
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1))
    if arguments.page:
        update(arguments.page, table, text)


def update(path: Path, table: str, text: str) -> None:
    """Replaces what is between a table's two markers in the file at `path` with `text`.

    Args:
        path: the file.
        table: the table's name; its markers are `<!-- name:begin -->` and `<!-- name:end -->`.
        text: the new content, in Markdown.

    Raises:
        ValueError: when the file does not have the two markers, once and in order.
    """
    opening, closing = f"<!-- {table}:begin -->", f"<!-- {table}:end -->"
    content = path.read_text(encoding="utf-8")
    before, begin, rest = content.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end or opening in rest or closing in after:
        raise ValueError(
            f"The file needs one {opening} and one {closing} after it. Received: path={path}"
        )
    path.write_text(f"{before}{opening}\n{text}\n{closing}{after}", encoding="utf-8")
