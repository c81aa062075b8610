"""The command lines of the benchmarks."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
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


def made_by(module: str, words: Sequence[str] | None = None) -> str:
    """The command that makes a table as it is, in the project's page.

    Args:
        module: the name of a benchmark that has the options of `pages.add_output_options`.
        words: the command line that was given; by default that of this process. Where its output
            goes is left out.
    """
    outputs = argparse.ArgumentParser(add_help=False)
    pages.add_output_options(outputs, pages.README)
    _, given = outputs.parse_known_args(words)
    return shlex.join(["python", "-m", f"benchmarks.{module}", *given, "--update"])
