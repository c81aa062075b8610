"""`tfdist run`: starts a script in several processes, on one machine or several."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from typing import Any

import click

from tfdist.cli.choices import check_count, check_reducers, machines_of, strategy_of
from tfdist.cli.elastic_options import ElasticOptions, check_elastic, elastic_options
from tfdist.cli.reporting import directory_of, report, say
from tfdist.cli.seconds import Seconds
from tfdist.elastic.kept import NotKeptError
from tfdist.launcher import isolation, output, signals
from tfdist.launcher.job import Job
from tfdist.launcher.job_limits import Limits
from tfdist.launcher.joining_group import OverError
from tfdist.launcher.outcome import TIMED_OUT, Outcome, ended_by
from tfdist.launcher.starting import starting
from tfdist.limits import MOST_DEVICES
from tfdist.rendezvous.reaching import RefusedError
from tfdist.strategies.registry import LAUNCHED

_SECONDS = Seconds()
_RESTARTS = 3
_NUMBER = click.IntRange(1, MOST_DEVICES)
_EXAMPLE = """\b
Example:
  tfdist run -n 2 train.py --epochs 3
  tfdist run -n 2 --strategy horovod train.py
  tfdist run -n 3 --ps 1 train.py
  tfdist run -n 4 --min 2 train.py
  tfdist run -n 2 --isolate train.py
  tfdist run -n 2 --watch train.py
  tfdist run -n 2 --rendezvous 10.0.0.1:2222 --machines 2 train.py
  tfdist run -n 2 --rendezvous 10.0.0.1:2222 --min 2 train.py
  tfdist run -n 2 --timeout 600 -m package.train --epochs 3
"""


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="-n N [OPTIONS]",
    no_args_is_help=True,
    epilog=_EXAMPLE,
)
@click.option(
    "-n",
    "--processes",
    "count",
    type=click.IntRange(0, MOST_DEVICES),
    required=True,
    metavar="N",
    help="Number of processes on this machine, the ranks 0 to N-1 if it is alone; with parameter "
    "servers a chief and N-1 workers. 0 is for a machine that has only --reducers.",
)
@click.option(
    "--strategy",
    type=click.Choice(list(LAUNCHED)),
    help="How the processes exchange gradients: over TensorFlow (multi_worker, the default: "
    "TF_CONFIG is set), over Horovod, which must be installed, or over parameter servers.",
)
@click.option(
    "--ps",
    type=_NUMBER,
    metavar="P",
    help="Number of parameter servers, started besides the N processes; implies --strategy "
    "parameter_server, with which it is 1 if not given.",
)
@click.option(
    "--evaluator",
    is_flag=True,
    help="Starts an evaluator too, which evaluates checkpoints beside training; with --ps.",
)
@click.option(
    "--ps-restarts",
    type=click.IntRange(0, MOST_DEVICES),
    metavar="R",
    help="How often each parameter server that fails or is killed is started again (3). Training "
    "goes on from the last snapshot.",
)
@click.option(
    "--reducers",
    type=_NUMBER,
    metavar="R",
    help="Number of processes that hold no model and only sum gradients, started besides the N "
    "processes of this machine; with --strategy multi_worker.",
)
@click.option(
    "--rendezvous",
    metavar="HOST:PORT",
    help="Trains on several machines: start the same command on each. The machine with the address "
    "HOST has rank 0, and the others come to its PORT.",
)
@click.option(
    "--machines",
    type=click.IntRange(2, MOST_DEVICES),
    metavar="M",
    help="Number of machines, with --rendezvous; each may have another -n. Not with --min.",
)
@click.option(
    "--secret-file",
    type=click.Path(),
    help="With --rendezvous, a file whose text is the same on all machines, at least 16 characters "
    "(or TFDIST_SECRET_FILE, or the secret itself in TFDIST_SECRET).",
)
@elastic_options
@click.option(
    "--devices-per-worker",
    type=_NUMBER,
    metavar="D",
    help="Splits the CPU of each process into D virtual devices, for tests.",
)
@click.option(
    "-m",
    "--module",
    is_flag=True,
    help="SCRIPT is the name of a module, as with `python -m`.",
)
@click.option(
    "--timeout",
    type=_SECONDS,
    help="Ends the job after so many seconds, with exit status 124.",
)
@click.option(
    "--connect-timeout",
    type=_SECONDS,
    help="How long a process waits for the others at its start (60, or TFDIST_CONNECT_TIMEOUT; "
    "Horovod's: 30, or HOROVOD_GLOO_TIMEOUT_SECONDS). With --rendezvous also how long a "
    "machine waits for the others (600).",
)
@click.option(
    "--stall-timeout",
    type=_SECONDS,
    default=60,
    show_default=True,
    help="Ends the job when a process is stopped, as by SIGSTOP, for so many seconds.",
)
@click.option(
    "--grace-period",
    type=_SECONDS,
    default=5,
    show_default=True,
    help="Processes that are told to end are killed after so many seconds.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False),
    help="Keeps the output of each rank in DIRECTORY/rank-0.log and so on. Without it, the logs "
    "are kept in a temporary directory, and only when something fails.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Gives the job a network of its own, which nothing outside of the job reaches, and from "
    "which the job reaches nothing. Linux only; needs no root where users may make namespaces.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Shows what each rank does: step, samples per second, waiting, memory. In a terminal "
    "live, below the output; else in a line now and then. On one machine only.",
)
@click.option("--verbose", is_flag=True, help="Tells what is started, and where the logs are.")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]..."
)
@click.pass_context
def run(
    context: click.Context,
    count: int,
    strategy: str | None,
    ps: int | None,
    evaluator: bool,
    ps_restarts: int | None,
    reducers: int | None,
    rendezvous: str | None,
    machines: int | None,
    secret_file: str | None,
    devices_per_worker: int | None,
    module: bool,
    timeout: float | None,
    connect_timeout: float | None,
    stall_timeout: float,
    grace_period: float,
    log_dir: str | None,
    isolate: bool,
    watch: bool,
    verbose: bool,
    command: tuple[str, ...],
    **given: Any,
) -> int:
    """Starts SCRIPT in N processes, which train together.

    The script needs no change: `tfdist.Strategy("auto")` in it finds the other processes. All
    ARGS belong to the script. The output of rank 0 is shown as it is. Output of other ranks is
    shown with their rank, as in "[1] ...". When one process fails, the others are ended. The exit
    status is then that of the first process that failed, or 128 plus the number of the signal that
    killed it. With parameter servers, training goes on when a worker fails, and a parameter server
    is started again; the job ends with the chief.
    """
    check_count(context, count, reducers, is_alone=rendezvous is None)
    strategy, ps = strategy_of(context, strategy, ps, count)
    if evaluator and not ps:
        context.fail(f"--evaluator is for jobs with --ps. Received: --strategy {strategy}")
    if ps_restarts is not None and not ps:
        context.fail(
            "--ps-restarts is for parameter servers: leave it out, or give --ps. "
            f"Received: --ps-restarts {ps_restarts} --strategy {strategy}"
        )
    program = [sys.executable, *(["-m"] if module else []), *command]
    if not module and not os.path.exists(command[0]):
        context.fail(f"there is no such script. Received: {command[0]!r}")
    one_device = LAUNCHED[strategy].one_device
    if one_device and devices_per_worker is not None:
        context.fail(
            f"{one_device} on one device in each process, so there is no "
            f"--devices-per-worker. Received: {devices_per_worker}"
        )
    elastic, is_alone = ElasticOptions(**given), rendezvous is None
    check_elastic(context, strategy, count, elastic, devices_per_worker, is_alone=is_alone)
    check_reducers(
        context,
        strategy,
        reducers,
        count,
        most=elastic.most,
        devices=devices_per_worker,
        is_alone=is_alone,
    )
    across = machines_of(
        context, strategy, rendezvous, machines, secret_file, connect_timeout, elastic
    )
    if across is not None and isolate:
        context.fail("A job with --isolate reaches no other machine: leave out --rendezvous.")
    if across is not None and watch:
        context.fail(
            "--watch sees the ranks of one machine only: leave out --rendezvous, or let the script "
            "write a page about all of them: strategy.callbacks(report=...)."
        )
    directory, logs = None, []
    try:
        if isolate:
            isolation.enter()
        directory = directory_of(log_dir)
        with contextlib.ExitStack() as held:
            with signals.raised(timeout):  # while other machines are waited for
                start = held.enter_context(
                    starting(
                        strategy,
                        count,
                        across,
                        ps=ps,
                        evaluator=evaluator,
                        reducers=reducers or 0,
                        devices_per_worker=devices_per_worker,
                        connect_timeout=connect_timeout,
                        elastic=elastic.limits(count, is_alone=is_alone),
                    )
                )
            logs = [output.Log(os.path.join(directory, one.log_name)) for one in start.members]
            if verbose:
                say(f"{start.described}, strategy {strategy}, logs in {directory}")
            of_servers = _RESTARTS if ps_restarts is None else ps_restarts
            limits = Limits(timeout, stall_timeout, grace_period, of_servers)
            job = Job(
                program,
                start.members,
                start.environments,
                logs,
                limits,
                remote=start.remote,
                group=start.group,
                watched=watch,
            )
            outcome = job.run()
    except OverError as error:
        outcome = error.outcome
    except signals.EndedError as error:
        outcome = ended_by(error.number)
        if error.number == signal.SIGALRM:
            outcome = Outcome(TIMED_OUT, f"the job had not begun after {timeout:g} s (--timeout)")
    except (OSError, ImportError, RefusedError, NotKeptError) as error:
        outcome = Outcome(2, str(error))
    except KeyboardInterrupt:  # while other machines are waited for
        if directory is not None and log_dir is None and not logs:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    keep = log_dir is not None or verbose or (outcome.message and logs)
    if directory is not None and not keep:
        shutil.rmtree(directory, ignore_errors=True)
    report(outcome, directory if logs else None)
    return outcome.status
