"""The options of elastic jobs, and how they fit each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import click

from tfdist.cli.seconds import Seconds
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.limits import MOST_DEVICES
from tfdist.strategies.registry import LAUNCHED

_REJOIN = 300.0  # seconds
_NUMBER = click.IntRange(1, MOST_DEVICES)
_SECONDS = Seconds()
_OPTIONS = (
    click.option(
        "--min",
        "least",
        type=_NUMBER,
        metavar="K",
        help="Makes the job elastic: when a process is killed or asked to leave by SIGTERM, the "
        "others go on without it, with the same result, as long as there are K of them.",
    ),
    click.option(
        "--max",
        "most",
        type=_NUMBER,
        metavar="K",
        help="With --min: how many processes there may be on all machines. Others may come with "
        "--rendezvous; SIGUSR1 to this command starts one more.",
    ),
    click.option(
        "--restarts",
        type=click.IntRange(0, MOST_DEVICES),
        metavar="R",
        help="With --min: how many processes that were killed are replaced by new ones, which join "
        "the others (0).",
    ),
    click.option(
        "--spares",
        type=click.IntRange(0, MOST_DEVICES),
        metavar="S",
        help="With --restarts: how many new processes are started before they are needed (0). They "
        "import TensorFlow and Keras, and wait.",
    ),
    click.option(
        "--rejoin-timeout",
        type=_SECONDS,
        help="With --restarts, --max or --rendezvous: when there are fewer than --min processes, "
        "they wait so many seconds for new ones (300); then the job ends with exit status 75.",
    ),
    click.option(
        "--backup-dir",
        type=click.Path(file_okay=False),
        help="With --min: when a job ends because it has too few processes, its state is kept "
        "here. The same command goes on from there.",
    ),
)


@dataclasses.dataclass(frozen=True)
class ElasticOptions:
    """What was given for these options; None for nothing.

    Attributes:
        least: `--min`.
        most: `--max`.
        restarts: `--restarts`.
        spares: `--spares`.
        rejoin_timeout: `--rejoin-timeout`.
        backup_dir: `--backup-dir`.
    """

    least: int | None = None
    most: int | None = None
    restarts: int | None = None
    spares: int | None = None
    rejoin_timeout: float | None = None
    backup_dir: str | None = None

    @property
    def given(self) -> dict[str, float | str]:
        """What was given, by option."""
        names = ("--min", "--max", "--restarts", "--spares", "--rejoin-timeout", "--backup-dir")
        values = zip(names, dataclasses.astuple(self))
        return {name: value for name, value in values if value is not None}

    @property
    def same_everywhere(self) -> dict[str, float | str]:
        """What the launchers of all machines must be given alike."""
        folder = {} if self.backup_dir is None else {"--backup-dir": "a folder"}
        return {**self.given, **folder}

    def limits(self, count: int, *, is_alone: bool) -> ElasticLimits | None:
        """How the job may change; None if it is not elastic.

        Args:
            count: the number of ranks on this machine.
            is_alone: whether there are no other machines.
        """
        if self.least is None:
            return None
        return ElasticLimits(
            self.least,
            self.most or (count if is_alone else MOST_DEVICES),
            self.restarts or 0,
            self.rejoin_timeout or _REJOIN,
            self.spares or 0,
            backup_dir=self.backup_dir or "",
        )


def elastic_options(command: Callable) -> Callable:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_elastic(
    context: click.Context,
    strategy: str,
    count: int,
    elastic: ElasticOptions,
    devices_per_worker: int | None,
    *,
    is_alone: bool,
) -> None:
    """Fails where `--min`, or what belongs to it, does not fit the other options.

    Args:
        context: fails where options do not fit.
        strategy: the name of a backend that `tfdist run` starts.
        count: the number of ranks on this machine.
        elastic: what was given for these options.
        devices_per_worker: the number of virtual devices.
        is_alone: whether there are no other machines.
    """
    least, given = elastic.least, elastic.given

    def received(*names: str) -> str:
        return "Received: " + " ".join(f"{name} {given[name]}" for name in names)

    if least is None:
        for name in given:
            context.fail(f"{name} is for jobs with --min. {received(name)}")
        return
    if elastic.most is not None and elastic.most < max(least, count):
        context.fail(
            f"--max must be at least --min and -n. {received('--max', '--min')} -n {count}"
        )
    if elastic.spares and not is_alone:
        context.fail(
            "--spares is for jobs on one machine: leave out --spares or --rendezvous. "
            f"{received('--spares')} --rendezvous"
        )
    may_come = not is_alone or (elastic.most or 0) > count
    for name, is_useful in (("--spares", False), ("--rejoin-timeout", may_come)):
        if given.get(name) and not elastic.restarts and not is_useful:
            context.fail(
                f"{name} is for jobs whose ranks are replaced: give --restarts too. "
                f"{received(name)}"
            )
    if (elastic.spares or 0) > (elastic.restarts or 0):
        context.fail(
            "--spares must be at most --restarts, as no more than that are used. "
            f"{received('--spares', '--restarts')}"
        )
    if LAUNCHED[strategy].elastic is None:
        names = ", ".join(name for name, launch in LAUNCHED.items() if launch.elastic)
        context.fail(f"--min is for the strategies {names}. Received: --strategy {strategy}")
    if is_alone and least > count:
        context.fail(f"--min must be at most -n. Received: --min {least} -n {count}")
    if devices_per_worker is not None:
        context.fail(
            "The ranks of an elastic job have one device each: leave out --devices-per-worker. "
            f"Received: --min {least} --devices-per-worker {devices_per_worker}"
        )
