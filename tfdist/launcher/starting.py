"""What the ranks of this machine are started with, whether or not there are other machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfdist.launcher import ranks
from tfdist.launcher.members import Member, members
from tfdist.launcher.remote import Remote
from tfdist.rendezvous.terms import Terms


class Start(NamedTuple):
    """The processes of this machine.

    Attributes:
        members: what each process is.
        environments: the environment of each process.
        described: how many processes there are, for a message.
        remote: the other machines; None without other machines.
    """

    members: Sequence[Member]
    environments: Sequence[Mapping[str, str]]
    described: str
    remote: Remote | None = None


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
            yield Start(own, found, f"{len(own)} processes")
        return
    with ranks.environments_of_machine(
        across, count, devices_per_worker=devices_per_worker, connect_timeout=connect_timeout
    ) as (meeting, found):
        own = members(count, first=meeting.first)
        described = f"{count} of {meeting.ranks} processes on {across.machines} machines"
        yield Start(own, found, described, Remote(meeting))
