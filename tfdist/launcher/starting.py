"""What the ranks of this machine are started with, whether or not there are other machines."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfdist.launcher import ranks
from tfdist.launcher.group import Group
from tfdist.launcher.members import Member, members
from tfdist.launcher.recent import Recent
from tfdist.launcher.remote import Remote
from tfdist.rendezvous.terms import Terms
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
    group: Group | None = None


@contextlib.contextmanager
def starting(
    strategy: str,
    count: int,
    across: Terms | None,
    *,
    ps: int,
    evaluator: bool,
    devices_per_worker: int | None,
    connect_timeout: float | None,
    least: int | None = None,
    restarts: int = 0,
    patience: float = math.inf,
    spares: int = 0,
) -> Iterator[Start]:
    """Prepares the start of processes. Keep it open while they run.

    Args:
        strategy: the name of a backend that `tfdist run` starts.
        count: the number of ranks on this machine.
        across: what the launchers of several machines agree on; None for one machine.
        ps: the number of parameter servers.
        evaluator: whether there is an evaluator.
        devices_per_worker: as for `ranks.environments`.
        connect_timeout: as for `ranks.environments`.
        least: how few ranks of an elastic job may be left; None if none may be lost.
        restarts: how many ranks of an elastic job that were killed are replaced.
        patience: seconds for which too few ranks wait for new ones.
        spares: how many new ranks of an elastic job are started before they are needed.

    Raises:
        RefusedError, OSError, ImportError: in one line, when the job cannot begin.
    """
    if across is None:
        own = members(count, ps, evaluator)
        with ranks.environments(
            strategy,
            count,
            ps=ps,
            evaluator=evaluator,
            devices_per_worker=devices_per_worker,
            connect_timeout=connect_timeout,
        ) as found:
            described = f"{len(own)} processes"
            if least is None:
                yield Start(own, found, described)
                return
            with contextlib.ExitStack() as formed:
                elastic = LAUNCHED[strategy].elastic
                assert elastic is not None
                group = Group(
                    least,
                    formed.enter_context(Recent(elastic)).variables,
                    restarts=restarts,
                    patience=patience,
                    spares=spares,
                    journal=_journal(formed) if restarts else "",
                )
                yield Start(own, found, described, group=group)
        return
    with ranks.environments_of_machine(
        across, count, devices_per_worker=devices_per_worker, connect_timeout=connect_timeout
    ) as (meeting, found):
        own = members(count, first=meeting.first)
        described = f"{count} of {meeting.ranks} processes on {across.machines} machines"
        yield Start(own, found, described, Remote(meeting))


def _journal(formed: contextlib.ExitStack) -> str:
    """The path of a file for what ranks do, which `formed` keeps until the job ends."""
    directory = formed.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-journal-"))
    return os.path.join(directory, "journal")
