"""What the options of `tfdist run` mean together, and which ones exclude each other."""

from __future__ import annotations

import os

import click

from tfdist import environment
from tfdist.arguments import shown
from tfdist.cli.elastic_options import ElasticOptions
from tfdist.cli.reporting import say
from tfdist.cluster.addresses import split_address
from tfdist.cluster.environments import wants_reducers
from tfdist.rendezvous import secret
from tfdist.rendezvous.terms import FixedTerms, Terms
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


def check_count(
    context: click.Context, count: int, reducers: int | None, *, is_alone: bool
) -> None:
    """Fails if there are no ranks where other machines do not have them.

    Args:
        context: as for `check_reducers`.
        count: as there.
        reducers: as there.
        is_alone: as there.
    """
    if count < 1 and (is_alone or reducers is None):
        raise click.BadParameter(
            "it must be at least 1, except with --rendezvous and --reducers, on a machine that "
            f"only sums. Received: -n {count}",
            context,
            param_hint="'-n'",
        )


def check_reducers(
    context: click.Context,
    strategy: str,
    reducers: int | None,
    count: int,
    *,
    most: int | None,
    devices: int | None,
    is_alone: bool,
) -> None:
    """Fails if there are reducers where nobody can use them, or that are asked for in another way.

    Args:
        context: fails where options do not fit.
        strategy: the name of a backend that `tfdist run` starts.
        reducers: the number of reducers.
        count: the number of ranks.
        most: how many ranks there may be later, in an elastic job; None for no more.
        devices: the number of devices of each rank.
        is_alone: whether this is the only machine; others may have the ranks.
    """
    if wants_reducers():
        context.fail(
            f"{environment.REDUCERS} is for `horovodrun`: unset it, and give --reducers instead. "
            f"Received: {environment.REDUCERS}={shown(os.environ[environment.REDUCERS])}"
        )
    if reducers is None:
        return
    if not LAUNCHED[strategy].has_reducers:
        names = ", ".join(name for name, launch in LAUNCHED.items() if launch.has_reducers)
        context.fail(
            f"--reducers is for the strategy {names}: leave out --reducers or --strategy. "
            f"Received: --reducers {reducers} --strategy {strategy}"
        )
    if devices is not None and devices > 1:
        context.fail(
            "Reducers are for ranks of one device: leave out --devices-per-worker. "
            f"Received: --devices-per-worker {devices} --reducers {reducers}"
        )
    if is_alone and max(count, most or 0) < 2:
        limit = "" if most is None else f" --max {most}"
        context.fail(
            "Reducers sum what several ranks send them, so -n must be at least 2, or --max in a "
            f"job with --min. Received: -n {count}{limit} --reducers {reducers}"
        )


def machines_of(
    context: click.Context,
    strategy: str,
    rendezvous: str | None,
    machines: int | None,
    secret_file: str | None,
    patience: float | None,
    elastic: ElasticOptions,
) -> Terms | None:
    """What the launchers of several machines agree on; None for one machine.

    Args:
        context: fails where options do not fit.
        strategy: the name of a backend that `tfdist run` starts.
        rendezvous: where the launchers meet.
        machines: how many there are.
        secret_file: where the secret is.
        patience: seconds to wait for the others.
        elastic: what was given for an elastic job, whose machines come and go.
    """
    if rendezvous is None and machines is None and secret_file is None:
        return None
    is_elastic = elastic.least is not None
    if is_elastic and machines is not None:
        context.fail(
            "The machines of a job with --min may come and go: leave out --machines. "
            f"Received: --machines {machines}"
        )
    needed = {"--rendezvous": rendezvous, "--machines": machines or is_elastic or None}
    for name, value in needed.items():
        if value is None:
            context.fail(
                f"several machines need --rendezvous, and --machines or --min. Received: no {name}"
            )
    across = LAUNCHED[strategy].across
    if across is None:
        names = ", ".join(name for name, launch in LAUNCHED.items() if launch.across)
        context.fail(
            f"--rendezvous is for the strategies {names}; for parameter servers on several "
            f"machines, set TF_CONFIG on each. Received: --strategy {strategy}"
        )
    assert rendezvous is not None
    same: dict[str, str | float | None] = {"--strategy": strategy, "--machines": machines}
    same |= elastic.same_everywhere
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
    common = rendezvous, known, patience or _MEETING, same, say
    return Terms(*common) if machines is None else FixedTerms(*common, machines, across)
