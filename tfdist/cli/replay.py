"""`tfdist replay`: repeats recorded training in one process."""

from __future__ import annotations

import os
import runpy
import sys

import click

from tfdist import environment
from tfdist.cluster.environments import RANK_VARIABLES
from tfdist.replay import log

_EXAMPLE = """\b
Example:
  tfdist run -n 3 --ps 1 train.py --epochs 3
  tfdist replay run.log train.py --epochs 3
  tfdist replay -m run.log pdb train.py --epochs 3
"""
_NOTHING = (
    "the script made no tfdist.ParameterServerStrategy with record=..., so there was nothing to "
    "replay"
)


@click.command(
    context_settings={"allow_interspersed_args": False},
    no_args_is_help=True,
    epilog=_EXAMPLE,
)
@click.option(
    "-m",
    "--module",
    is_flag=True,
    help="SCRIPT is the name of a module, as with `python -m`.",
)
@click.argument("record", type=click.Path(exists=True, dir_okay=False))
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]..."
)
@click.pass_context
def replay(context: click.Context, module: bool, record: str, command: tuple[str, ...]) -> int:
    """Repeats the run of SCRIPT that wrote RECORD while it trained with parameter servers.

    Give the same script and ARGS as in the recorded run. Each step uses the same batch, weights and
    seeds as then. The updates are made in the same order, all in this one process. The last line
    says how close the final weights are to the recorded ones. The exit status is 1 when they differ
    by more than 1e-6. If the script ends with another status than 0, this command does so too.
    """
    script, *_ = command
    if not module and not os.path.exists(script):
        context.fail(f"there is no such script. Received: {script!r}")
    try:
        header = log.read(record).header
    except ValueError as error:
        context.fail(str(error))
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    os.environ[environment.REPLAY] = os.path.abspath(record)
    if header.threads is not None and header.threads.isdecimal():
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", header.threads)
    sys.argv = [*command]
    try:
        status = _run(script, module)
    except BaseException:  # how far the replay came helps to find the reason
        _report()
        raise
    problem = _report()
    if problem == _NOTHING and not status:
        context.fail(f"{_NOTHING}. Received: {sys.argv[0]!r}")
    return status or int(problem is not None)


def _run(script: str, module: bool) -> int:
    """Runs the script, or the module of this name. Returns the exit status as Python would."""
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        click.echo(end.code, err=True)
        return 1
    return 0


def _report() -> str | None:
    """Prints how the replay went, if there was one. Returns the problem; None for no problem."""
    from tfdist.replay.replayer import started

    done = started()
    if done is None:
        return _NOTHING
    click.echo(f"tfdist replay: {done.summary()}", err=True)
    return done.problem()
