"""The command lines of the benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import pages


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's description as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_plot(parser: argparse.ArgumentParser, default: Path, what: str) -> None:
    """Adds the option `--plot [PATH]`, with which `what` is drawn."""
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="?",
        const=default,
        metavar="PATH",
        help=f"draw {what} into PATH (default: {default.relative_to(pages.ROOT)})",
    )
