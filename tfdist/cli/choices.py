"""What the options of `tfdist run` mean together, and which ones exclude each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from tfdist.cli.reporting import say
from tfdist.cluster.addresses import split_address
from tfdist.rendezvous import secret
from tfdist.rendezvous.terms import Terms
from tfdist.strategies.registry import LAUNCHED

_MEETING = 600.0  # seconds: people start the command on one machine after the other
_ALL_INTERFACES = ("0.0.0.0", "::")


def strategy_of(
    context: click.Context, strategy: str | None, ps: int | None, count: int
) -> tuple[str, int]:
    """The strategy and the number of parameter servers that the options mean."""
    servers = next(name for name, launch in LAUNCHED.items() if launch.has_servers)
    if ps is not None and strategy not in (None, servers):
        context.fail(
            f"--ps is for the strategy {servers}: leave out --ps or --strategy. "
            f"Received: --ps {ps} --strategy {strategy}"
        )
    if ps is None and strategy != servers:
        return strategy or next(iter(LAUNCHED)), 0
    if count < 2:
        context.fail(
            "With parameter servers, -n counts the chief and the workers, so it must be at least "
            f"2. Received: -n {count}"
        )
    return servers, ps or 1


def machines_of(
    context: click.Context,
    strategy: str,
    rendezvous: str | None,
    machines: int | None,
    secret_file: str | None,
    patience: float | None,
) -> Terms | None:
    """What the launchers of several machines agree on; None for one machine."""
    given = {"--rendezvous": rendezvous, "--machines": machines}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given) and secret_file is None:
        return None
    if missing:
        context.fail(
            f"several machines need --rendezvous and --machines. Received: no {missing[0]}"
        )
    across = LAUNCHED[strategy].across
    if across is None:
        names = ", ".join(name for name, launch in LAUNCHED.items() if launch.across)
        context.fail(
            f"--rendezvous is for the strategies {names}; for parameter servers on several "
            f"machines, set TF_CONFIG on each. Received: --strategy {strategy}"
        )
    assert rendezvous is not None and machines is not None
    same: dict[str, str | int] = {"--strategy": strategy, "--machines": machines}
    try:
        host, _ = split_address(rendezvous)
        known = secret.read(secret_file, os.environ)
    except (ValueError, OSError) as error:
        context.fail(str(error))
    if host in _ALL_INTERFACES:
        context.fail(
            "--rendezvous needs the address at which the other machines reach this one. "
            f"Received: {rendezvous}"
        )
    return Terms(rendezvous, known, machines, patience or _MEETING, same, across, say)


def check_elastic(
    context: click.Context,
    strategy: str,
    count: int,
    least: int | None,
    replacing: Mapping[str, float | None],
    across: Terms | None,
    devices_per_worker: int | None,
) -> None:
    """Fails where `--min`, or what belongs to it, does not fit the other options."""
    if least is None:
        for name, value in replacing.items():
            if value is not None:
                context.fail(f"{name} is for jobs with --min. Received: {name} {value:g}")
        return
    for name in ("--spares", "--rejoin-timeout"):
        value = replacing[name]
        if value and not replacing["--restarts"]:
            context.fail(
                f"{name} is for jobs whose ranks are replaced: give --restarts too. "
                f"Received: {name} {value:g}"
            )
    if (replacing["--spares"] or 0) > (replacing["--restarts"] or 0):
        context.fail(
            "--spares must be at most --restarts, as no more than that are used. "
            f"Received: --spares {replacing['--spares']} --restarts {replacing['--restarts']}"
        )
    if LAUNCHED[strategy].elastic is None:
        names = ", ".join(name for name, launch in LAUNCHED.items() if launch.elastic)
        context.fail(f"--min is for the strategies {names}. Received: --strategy {strategy}")
    if least > count:
        context.fail(f"--min must be at most -n. Received: --min {least} -n {count}")
    if across is not None:
        context.fail(
            "--min is for jobs on one machine: leave out --rendezvous. "
            f"Received: --min {least} --rendezvous"
        )
    if devices_per_worker is not None:
        context.fail(
            "The ranks of an elastic job have one device each: leave out --devices-per-worker. "
            f"Received: --min {least} --devices-per-worker {devices_per_worker}"
        )
