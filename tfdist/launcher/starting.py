"""What the ranks of this machine are started with, whether or not there are other machines."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfdist.cluster.machines import Location, interface_of
from tfdist.cluster.places import LOOPBACK
from tfdist.launcher import ranks
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.group import Group
from tfdist.launcher.job_group import JobGroup
from tfdist.launcher.joining_group import JoiningGroup, Welcome, welcomed
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.members import Member, elastic_member, members
from tfdist.launcher.recent import Recent
from tfdist.launcher.remote import Remote
from tfdist.launcher.serving_group import ServingGroup
from tfdist.rendezvous.reaching import RefusedError, connected, listener_at
from tfdist.rendezvous.terms import FixedTerms, Terms
from tfdist.strategies.registry import LAUNCHED


class Start(NamedTuple):
    """The processes of this machine.

    Attributes:
        members: what each process is.
        environments: the environment of each process.
        described: how many processes there are, for a message.
        remote: the other machines; None without other machines.
        group: the group of an elastic job; None for ranks that need each other.
    """

    members: Sequence[Member]
    environments: Sequence[Mapping[str, str]]
    described: str
    remote: Remote | None = None
    group: JobGroup | None = None


@contextlib.contextmanager
def starting(
    strategy: str,
    count: int,
    across: Terms | None,
    *,
    ps: int,
    evaluator: bool,
    reducers: int = 0,
    devices_per_worker: int | None,
    connect_timeout: float | None,
    elastic: ElasticLimits | None = None,
) -> Iterator[Start]:
    """Prepares the start of processes. Keep it open while they run.

    Args:
        strategy: the name of a backend that `tfdist run` starts.
        count: the number of ranks on this machine.
        across: what the launchers of several machines agree on; None for one machine.
        ps: the number of parameter servers.
        evaluator: whether there is an evaluator.
        reducers: the number of reducers.
        devices_per_worker: as for `ranks.environments`.
        connect_timeout: as for `ranks.environments`.
        elastic: how an elastic job may change; None if no rank may be lost.

    Raises:
        RefusedError, OSError, ImportError: in one line, when the job cannot begin.
    """
    if isinstance(across, FixedTerms):
        with ranks.environments_of_machine(
            across,
            count,
            reducers=reducers,
            devices_per_worker=devices_per_worker,
            connect_timeout=connect_timeout,
        ) as (meeting, found):
            first, first_reducer = meeting.first, meeting.first_reducer
            own = members(count, reducers=reducers, first=first, first_reducer=first_reducer)
            described = f"{count} of {meeting.ranks} ranks on {across.machines} machines"
            yield Start(own, found, described, Remote(meeting))
        return
    # TF_CONFIG has a worker, also on a machine of an elastic job that only sums.
    started = max(1, count)
    with (
        ranks.environments(
            strategy,
            started,
            ps=ps,
            evaluator=evaluator,
            reducers=reducers,
            devices_per_worker=devices_per_worker,
            connect_timeout=connect_timeout,
        ) as found,
        contextlib.ExitStack() as held,
    ):
        own, group = members(count, ps, evaluator, reducers), None
        if elastic is not None:
            place, group = _joined(strategy, count, reducers, across, elastic, held)
            own = [elastic_member("rank", number) for number in place.ranks]
            own += [elastic_member("reducer", number) for number in place.reducers]
            found = [*found[: len(place.ranks)], *found[started:]]
        yield Start(own, found, f"{len(own)} processes", group=group)


def _joined(
    strategy: str,
    count: int,
    reducers: int,
    across: Terms | None,
    elastic: ElasticLimits,
    held: contextlib.ExitStack,
) -> tuple[Welcome, JobGroup]:
    """The numbers of the processes of this machine, and the group.

    Args:
        strategy: as for `starting`.
        count: as for `starting`.
        reducers: as for `starting`.
        across: as for `starting`.
        elastic: as for `starting`.
        held: keeps what the group needs until the job ends.
    """
    make = LAUNCHED[strategy].elastic
    assert make is not None
    listener = listener_at(across.address) if across is not None else None
    if across is not None and listener is None:
        across.say(f"Looking for the rendezvous {across.address}")
        channel = held.enter_context(connected(across))
        return welcomed(channel, across, count, reducers), JoiningGroup(
            channel, _journal(held), Keeping(elastic.backup_dir)
        )
    if not count:
        raise RefusedError(
            "The machine that serves the rendezvous has the first rank, so its -n must be at least "
            "1; start the machines that only sum elsewhere. Received: -n 0"
        )
    place = Welcome([*range(count)], [*range(count, count + reducers)])
    host = listener.getsockname()[0] if listener is not None else LOOPBACK
    variables = held.enter_context(Recent(functools.partial(make, host))).variables
    variables([Location(0, interface_of(host))])  # fails here, if it does
    is_open = across is not None or elastic.most > count
    elastic = dataclasses.replace(elastic, is_open=is_open)
    keeps = is_open or elastic.restarts or elastic.backup_dir
    common = (
        elastic,
        variables,
        host,
        Location(0, interface_of(host)),
        _journal(held) if keeps else "",
        Keeping(elastic.backup_dir),
    )
    if across is None or listener is None:
        return place, Group(*common)
    across.say(f"Serving the rendezvous {across.address}; others may come at any time")
    return place, ServingGroup(listener, across, *common)


def _journal(held: contextlib.ExitStack) -> str:
    """The path of a file for what ranks do, which `held` keeps until the job ends."""
    directory = held.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-journal-"))
    return os.path.join(directory, "journal")
