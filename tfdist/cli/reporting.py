"""What `tfdist run` says itself, and where it keeps logs."""

from __future__ import annotations

import contextlib
import os
import tempfile

import click

from tfdist.launcher import output
from tfdist.launcher.outcome import Outcome


def directory_of(chosen: str | None) -> str:
    """The directory for logs, which is made: `chosen`, or a temporary one."""
    if chosen is None:
        return tempfile.mkdtemp(prefix="tfdist-")
    os.makedirs(chosen, exist_ok=True)
    return os.path.abspath(chosen)


def report(outcome: Outcome, directory: str | None) -> None:
    """Says what went wrong, if anything, and shows the last lines of the rank."""
    if not outcome.message:
        return
    say(outcome.message)
    rank = outcome.rank
    if rank is not None:
        lines = rank.log.last_lines
        say(
            f"the last lines of {rank.name}:"
            if lines
            else f"{rank.name} printed nothing of its own"
        )
        for line in lines:
            _echo(f"[{rank.member.label}] {line.decode(errors='replace')}")
    if directory is not None:
        say(f"all that the ranks printed is in {directory}/*.log")


def say(message: str) -> None:
    """Prints a line of the launcher's own."""
    _echo(output.SAYS + message)


def _echo(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        click.echo(line, err=True)
