"""Starts the processes of a job: at its start, and later in the place of others."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.launcher import guardian, output, spare
from tfdist.launcher.job_group import JobGroup
from tfdist.launcher.members import Member
from tfdist.launcher.rank import Rank
from tfdist.launcher.streams import Streams

_NO_ROOM = "no rank can be added here; see --min and --max"


class Processes:
    """The processes of a job, as far as they were started.

    Args:
        command: the program and its arguments.
        members: what each process is.
        environments: the environment of each process.
        logs: the log of each process; those of processes that are started later are added.
        streams: shows what the processes print.
        group: the group of an elastic job; None for ranks that need each other.
    """

    def __init__(
        self,
        command: Sequence[str],
        members: Sequence[Member],
        environments: Sequence[Mapping[str, str]],
        logs: list[output.Log],
        streams: Streams,
        group: JobGroup | None,
    ) -> None:
        self._command = list(command)
        self._members = list(members)
        self._environments = list(environments)
        self._logs = logs
        self._streams = streams
        self._group = group
        self._ranks: list[Rank] = []
        # Ranks that have ended and were started again.
        self._replaced: list[Rank] = []

    @property
    def pids(self) -> list[int]:
        """The process number of each rank that was started."""
        return [rank.process.pid for rank in [*self._replaced, *self._ranks]]

    def _start(self, watcher: guardian.Guardian) -> None:
        self._watcher = watcher
        for place in range(len(self._members)):
            self._ranks.append(self._started_rank(place))

    def _started_rank(self, place: int, *, is_spare: bool = False) -> Rank:
        member, log = self._members[place], self._logs[place]
        first = place == member.number == 0 and member.kind == "rank"
        given = self._group.connect(member, is_spare=is_spare) if self._group else ({}, ())
        variables, descriptors = given
        program, *arguments = self._command
        with self._streams.opened(member, log, first) as writers:
            process = self._watcher.start(
                [program, *((spare.__file__,) if is_spare else ()), *arguments],
                env={**self._environments[place], **variables},
                stdin=None if first else subprocess.DEVNULL,
                stdout=writers[1],
                stderr=subprocess.STDOUT if self._streams.together else writers[2],
                pass_fds=descriptors,
            )
        return Rank(member, process, log)

    def _start_again(self, failed: Rank, how: str, most: int) -> None:
        """Starts a rank again, at the same address and with the same log.

        Args:
            failed: the rank.
            how: how it has failed.
            most: how often that may be done.
        """
        failed.restarts += 1
        again = f"it is started again ({failed.restarts} of {most})"
        self._streams.say(f"{failed.name} {how}; {again}")
        guardian.kill_sessions([failed.process.pid])  # nothing of it may keep its port
        self._replaced.append(failed)
        failed.log.begin_again()
        place = self._ranks.index(failed)
        self._ranks[place] = self._started_rank(place)
        self._ranks[place].restarts = failed.restarts

    def _start_another(self, lost: Rank) -> None:
        """Starts a process of an elastic job in the place of a lost one."""
        assert self._group is not None
        kind = lost.member.kind
        number = self._group.begin_spare() if kind == "rank" else None
        if number is None:
            number = self._start_one_more(self._group.next_number, kind)
        if number is not None:
            self._streams.say(f"{kind} {number} is started in the place of {lost.name}")

    def _start_spare(self) -> None:
        """Starts a process that waits to become a rank of an elastic job."""
        assert self._group is not None
        if self._start_one_more(self._group.next_number, "rank", is_spare=True) is None:
            self._group.lose_spare()

    def _add_one(self) -> None:
        """Starts one more rank of an elastic job, if there may be one."""
        number = None
        if self._group is not None and self._group.has_room:
            # One that waits comes first: a rank must not join later than one with a higher number.
            number = self._group.begin_spare()
            if number is None:
                number = self._start_one_more(self._group.next_number, "rank")
        self._streams.say(
            "SIGUSR1: " + (_NO_ROOM if number is None else f"rank {number} is started")
        )

    def _start_joining(self, number: int, kind: str) -> None:
        """Starts a process of an elastic job, as another launcher says."""
        if self._start_one_more(number, kind) is not None:
            self._streams.say(f"{kind} {number} is started")

    def _start_one_more(self, number: int, kind: str, *, is_spare: bool = False) -> int | None:
        """Starts a process of an elastic job. Returns its number, or says why it cannot start."""
        assert self._group is not None
        place = len(self._members)
        like = max(p for p, member in enumerate(self._members) if member.kind == kind)
        member = dataclasses.replace(self._members[like], number=number)
        path = os.path.join(os.path.dirname(self._logs[0].path), member.log_name)
        try:
            self._logs.append(output.Log(path))
            self._members.append(member)
            self._environments.append(self._environments[like])  # not that of rank 0
            self._ranks.append(self._started_rank(place, is_spare=is_spare))
        except OSError as error:
            self._streams.say(f"{member.name} cannot be started: {error}")
            self._group.forget(number)
            return None
        return number

    def _kill(self, number: int) -> None:
        for rank in self._ranks:
            if rank.member.number == number:
                rank.signal(signal.SIGKILL)
