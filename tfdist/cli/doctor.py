"""`tfdist doctor`: says what is installed, what can run here, and what is wrong."""

from __future__ import annotations

import dataclasses
import json
import os

import click

from tfdist.cli import private
from tfdist.cli.examination import Report, examine, probe

_EXAMPLE = """\b
Example:
  tfdist doctor
  srun -n 2 tfdist doctor --json
  tfdist doctor --private
"""


@click.command(epilog=_EXAMPLE)
@click.option("--json", "as_json", is_flag=True, help="Prints JSON, for programs.")
@click.option(
    "--private",
    "lists_private",
    is_flag=True,
    help="Lists the private attributes of TensorFlow and Keras that tfdist uses, instead.",
)
def doctor(as_json: bool, lists_private: bool) -> int:
    """Says what is installed, which strategies can run here, and what is wrong.

    Start it in the same way as your script, for example under `srun` or `mpirun`: it reads the same
    environment variables. The exit status is 1 when there are problems.
    """
    if lists_private:
        found = private.touches()
        click.echo(json.dumps(found, indent=2) if as_json else private.as_text(found))
        return 1 if any(touch["problem"] for touch in found) else 0
    report = examine(os.environ, probe(os.environ))
    click.echo(json.dumps(dataclasses.asdict(report), indent=2) if as_json else as_text(report))
    return 1 if report.problems else 0


def as_text(report: Report) -> str:
    """The report for people, in several lines."""
    lines = ["Versions"]
    lines += [f"  {name:<17} {_version(report, name)}" for name in report.versions]
    lines += ["Devices", f"  {'CPU cores':<17} {report.cores}"]
    lines += [f"  {f'{kind} devices':<17} {count}" for kind, count in report.devices.items()]
    lines += ["Strategies"]
    for name, found in report.strategies.items():
        yes = f"yes, {found['how']}" if found["how"] else "yes"
        lines.append(f"  {name:<17} {yes if found['available'] else 'no: ' + found['reason']}")
    if report.auto:
        lines.append(f'  "auto" means {report.auto["strategy"]} here: {report.auto["reason"]}')
    lines += ["Environment"]
    lines += [f"  {name}={_one_line(value)}" for name, value in report.environment.items()]
    if not report.environment:
        lines.append("  none of the variables that tfdist reads is set")
    if report.notes:
        lines += ["Notes", *(f"  {note}" for note in report.notes)]
    lines += ["Problems"]
    lines += [f"  {problem}" for problem in report.problems] or ["  none"]
    return "\n".join(lines)


def _version(report: Report, name: str) -> str:
    version = report.versions[name]
    if version is None:
        return "not found"
    if name != "horovod":
        return version
    parts = [part for part in ("gloo", "mpi", "nccl") if report.horovod.get(part)]
    return f"{version}, built with {', '.join(parts) or 'nothing that can be read'}"


def _one_line(value: str) -> str:
    return " ".join(value.split())
