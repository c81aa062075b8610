"""`tfdist test`: measures a cluster, and trains on it for a try."""

from __future__ import annotations

import json
import os
import shutil
import sys

import click

from tfdist import environment
from tfdist.arguments import why_unwritable
from tfdist.cli.reporting import directory_of, report
from tfdist.cluster import describe
from tfdist.cluster.environments import has_reducers, wants_reducers
from tfdist.launcher import output
from tfdist.launcher.job import Job
from tfdist.launcher.starting import starting
from tfdist.limits import MOST_DEVICES
from tfdist.strategies.registry import LAUNCHED
from tfdist.watch.files import write_whole

_FEW = 2
_SYNCHRONOUS = [name for name, launch in LAUNCHED.items() if not launch.has_servers]
_EXAMPLE = """\b
Example:
  tfdist test
  tfdist test -n 4 --strategy horovod
  srun -n 8 tfdist test --json cluster.json
  horovodrun -np 2 tfdist test
  tfdist run -n 2 --rendezvous 10.0.0.1:2222 --machines 2 -m tfdist test
"""


@click.command(epilog=_EXAMPLE)
@click.option(
    "-n",
    "--processes",
    "count",
    type=click.IntRange(_FEW, MOST_DEVICES),
    metavar="N",
    help="Starts N ranks on this machine (2). Leave it out where a launcher starts the ranks.",
)
@click.option(
    "--strategy",
    type=click.Choice(_SYNCHRONOUS),
    help="What connects the ranks: TensorFlow (multi_worker, the default) or Horovod. Under a "
    "launcher, the default is what `tfdist.Strategy('auto')` would choose.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Writes what was found to FILE too; rank 0 writes it.",
)
@click.option(
    "--faults",
    is_flag=True,
    help="Also kills a rank of a small elastic job on the machine of rank 0, and looks whether it "
    "is replaced without a change of the result.",
)
@click.pass_context
def test(
    context: click.Context,
    count: int | None,
    strategy: str | None,
    json_path: str | None,
    faults: bool,
) -> int:
    """Is this cluster all right? Measures its ranks and links, and trains for a try.

    Start it as your job would be started, in place of the script. Without a launcher it starts
    ranks on this machine by itself. It compares versions and clocks, measures the latency and
    bandwidth of each pair of ranks and all-reduces of several sizes, and trains small models on all
    ranks and on one device, to compare the weights. The exit status is 1 when there are problems.
    """
    try:
        launch = describe(os.environ)
    except ValueError as error:
        context.fail(str(error))
    if environment.ELASTIC in os.environ:
        context.fail(
            "The ranks of an elastic job may change while they are tested: leave out --min, and "
            f"give --faults to `tfdist test`. Received: {environment.ELASTIC} is set"
        )
    if has_reducers(launch) or wants_reducers():
        context.fail(
            "A job with reducers is not tested: start the ranks that train, without them. "
            f"Received: {dict(launch.variables)}, "
            f"{environment.REDUCERS}={os.environ.get(environment.REDUCERS)!r}"
        )
    if launch.rank is None or (launch.cluster is not None and launch.cluster.jobs.get("ps")):
        context.fail(
            "A job with parameter servers or an evaluator is not tested: start the ranks that "
            f"train, without them. Received: {dict(launch.variables)}"
        )
    if json_path == "-":
        context.fail(
            "Standard output has the page for people, so --json takes the name of a file, such as "
            "--json cluster.json. Received: --json -"
        )
    is_rank_0 = launch.rank == 0
    why = why_unwritable(json_path) if json_path is not None and is_rank_0 else ""
    if why:
        context.fail(f"The file cannot be written: {why}. Received: --json {json_path}")
    if launch.size == 1:
        if count is None:
            found = f"one rank by {launch.launcher}" if launch.variables else "no launcher"
            click.echo(f"tfdist test: {found}, so {_FEW} ranks are started here", err=True)
        return _started(count or _FEW, strategy or _SYNCHRONOUS[0], json_path, faults)
    if count is not None:
        context.fail(
            f"{launch.launcher} has started this process as one of {launch.size}, so leave out -n. "
            f"Received: -n {count}"
        )
    return _as_rank(strategy, json_path, faults, is_rank_0)


def _as_rank(strategy: str | None, json_path: str | None, faults: bool, is_rank_0: bool) -> int:
    """Tests as a rank that a launcher has started. Returns the exit status."""
    import tensorflow as tf

    from tfdist.checkup import page, rank

    def say(line: str) -> None:
        click.echo(f"tfdist test: {line}", err=True)

    try:
        found = rank.examine(strategy, faults, say)
    except (ValueError, ImportError, OSError, RuntimeError, tf.errors.OpError) as error:
        why = _why(error)
        click.echo(f"Problems\n  the ranks cannot train together: {why}", err=not is_rank_0)
        return 1
    if not is_rank_0:
        return 0
    click.echo(page.as_text(found))
    if json_path is not None:
        try:
            write_whole(json_path, json.dumps(found.as_json(), indent=2) + "\n")
        except OSError as error:
            say(f"{json_path} could not be written: {error.strerror or error}")
            return 1
    return 1 if found.problems else 0


def _why(error: Exception) -> str:
    """What has failed: texts that are not tfdist's own need the name of the error's type."""
    if isinstance(error, (ValueError, ImportError, OSError)):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())


def _started(count: int, strategy: str, json_path: str | None, faults: bool) -> int:
    """Starts the ranks on this machine. Returns the exit status."""
    directory, logs = directory_of(None), []
    written = os.path.join(directory, "found.json")
    program = [sys.executable, "-m", "tfdist", "test", "--strategy", strategy, "--json", written]
    try:
        with starting(
            strategy,
            count,
            None,
            ps=0,
            evaluator=False,
            devices_per_worker=None,
            connect_timeout=None,
        ) as start:
            logs = [output.Log(os.path.join(directory, one.log_name)) for one in start.members]
            job = Job([*program, *["--faults"] * faults], start.members, start.environments, logs)
            outcome = job.run()
    except (OSError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    if not os.path.exists(written):
        report(outcome, directory)
        return outcome.status or 1
    if json_path is not None:
        try:
            shutil.copyfile(written, json_path)
        except OSError as error:
            raise click.ClickException(f"{error}; what was found is in {written}") from error
    shutil.rmtree(directory, ignore_errors=True)
    return outcome.status  # the page has said what is wrong
