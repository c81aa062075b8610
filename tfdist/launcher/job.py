"""Watches over the ranks: shows what they print, and ends all ranks when it is time."""

from __future__ import annotations

import math
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence

from tfdist.launcher import guardian, outcome, output, signals
from tfdist.launcher.hands import Hands
from tfdist.launcher.job_group import JobGroup
from tfdist.launcher.job_limits import Limits
from tfdist.launcher.members import Member
from tfdist.launcher.outcome import Outcome
from tfdist.launcher.processes import Processes
from tfdist.launcher.rank import Rank, ending
from tfdist.launcher.remote import Remote
from tfdist.launcher.streams import Streams

# After the first failure, the other ranks may end by themselves, and so tell what they have seen.
# On a busy machine, a rank that has printed a traceback or leaves early takes long to end.
_SETTLE_FAILING = 5.0
# The states of stopped ranks are read this often.
_LOOK = 0.5


class Job(Processes):
    """The ranks of one script, from their start to their end.

    Args:
        command: as for `Processes`.
        members: as for `Processes`.
        environments: as for `Processes`.
        logs: as for `Processes`.
        limits: how long things may take.
        remote: tells how ranks on other machines have failed; None without other machines.
        group: as for `Processes`.
        watched: whether it is shown what the ranks do.
    """

    def __init__(
        self,
        command: Sequence[str],
        members: Sequence[Member],
        environments: Sequence[Mapping[str, str]],
        logs: list[output.Log],
        limits: Limits | None = None,
        remote: Remote | None = None,
        group: JobGroup | None = None,
        watched: bool = False,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        streams = Streams(self._selector)
        self._watching = streams.watching() if watched else None
        if self._watching is not None:
            environments = [{**own, **self._watching.environment} for own in environments]
        super().__init__(command, members, environments, logs, streams, group)
        self._limits = limits or Limits()
        self._remote = remote
        # The outcome, if it does not follow from how the ranks end.
        self._outcome: Outcome | None = None
        self._first_failure: float | None = None
        # When the ranks were told to end.
        self._told = math.inf
        self._next_look = 0.0
        self._ending = False
        # Signals still to be sent, with their times.
        self._to_send: list[tuple[float, signal.Signals]] = []
        self._started = time.monotonic()

    def run(self) -> Outcome:
        """Starts the ranks. Returns when all ranks and all that they started have ended."""
        with guardian.Guardian() as watcher, signals.received() as received, self._selector:
            self._selector.register(received, selectors.EVENT_READ)
            if self._group is not None:
                hands = Hands(self._streams.say, self._kill, self._start_joining, self._end_after)
                self._group.open(self._selector, hands)
            if self._remote is not None:
                self._selector.register(self._remote, selectors.EVENT_READ)
            try:
                self._start(watcher)
                while self._goes_on:
                    self._step(received)
            except Exception as error:
                if self._group is not None:
                    self._group.concluded(outcome.Outcome(2, f"a launcher has failed: {error}"))
                raise
            finally:
                guardian.kill_sessions(self.pids)
                self._drain(received)
                for rank in [*self._replaced, *self._ranks]:
                    rank.process.wait()
            own = self._outcome or outcome.of_ranks(self._ranks, self._told, self._started)
            if self._group is not None:
                own = self._group.concluded(own)
                self._streams.show_said()
                return own
            if self._remote is None:
                return own
            end = self._started + (self._limits.total or math.inf)
            return self._remote.concluded(own, received, end, self._limits.grace)

    @property
    def _goes_on(self) -> bool:
        runs = any(rank.code is None for rank in self._ranks)
        return runs or (self._group is not None and self._group.awaits_others)

    # --- watching -----------------------------------------------------------------------------

    def _step(self, received: int) -> None:
        ready = self._selector.select(self._pause())
        now = time.monotonic()
        # Deaths come before the output, in which other ranks may already complain about a death.
        self._look_for_deaths(now)
        for key, _ in ready:
            if key.fd == received:
                self._take_signals(received)
            elif key.fileobj is self._remote:
                self._selector.unregister(self._remote)
                self._end(self._remote.failure(), now, signal.SIGTERM)
            else:
                self._streams.read(key)
        self._streams.show_said()
        if now >= self._next_look:
            self._next_look = now + _LOOK
            self._look_for_stopped_ranks(now)
            if self._group is not None and self._group.is_overdue(now):
                self._end(outcome.too_few(self._group.shortage), now, signal.SIGTERM)
        if self._group is not None:
            self._group.look(now)
            if self._group.lacks_spare:
                self._start_spare()
        if self._watching is not None:
            running = [rank.process.pid for rank in self._ranks if rank.code is None]
            self._watching.look(now, running)
        if self._streams.broken:
            # Nobody reads the output any more. A single program would end in the same way.
            self._end(outcome.ended_by(signal.SIGPIPE), now, signal.SIGTERM)
        total = self._limits.total
        if total is not None and now - self._started >= total:
            group = self._group
            ranks = [r for r in self._ranks if not (group and group.waits(r.member.number))]
            self._end(outcome.timed_out(ranks, total), now, signal.SIGTERM)
        while self._to_send and now >= self._to_send[0][0]:
            number = self._to_send[0][1]
            if number == signal.SIGTERM and self._some_still_fail(now):
                break
            self._to_send.pop(0)
            self._told = min(self._told, now)
            if self._group is not None:
                self._group.end_others(self._outcome)
            for rank in self._ranks:
                rank.signal(number)
                if number == signal.SIGTERM:
                    rank.signal(signal.SIGCONT)  # a stopped rank would not notice SIGTERM

    def _some_still_fail(self, now: float) -> bool:
        """Whether a rank is about to end by itself, which may explain why another rank failed.

        If all failed ranks say that they lost a peer, the missing one may leave with status 0.
        """
        first = self._first_failure
        if first is None or now >= first + _SETTLE_FAILING:
            return False
        failed = [rank for rank in self._ranks if rank.code]
        unexplained = all(rank.log.lost_a_peer for rank in failed) and all(
            rank.code != 0 for rank in self._ranks
        )
        return unexplained or any(rank.fails(first) for rank in self._ranks)

    def _pause(self) -> float:
        """Seconds until the next thing to do, if nothing happens."""
        now = time.monotonic()
        times = [now + _LOOK] + [at for at, _ in self._to_send[:1]]
        if self._limits.total is not None and not self._ending:
            times.append(self._started + self._limits.total)
        if self._group is not None:
            times.append(now + self._group.pause)
        if self._watching is not None:
            times.append(now + self._watching.pause)
        return max(0.0, min(times) - now)

    def _look_for_deaths(self, now: float) -> None:
        # First look at all ranks: what the end of one rank means depends on the others.
        dead = [rank for rank in self._ranks if rank.look(now)]
        for rank in dead:
            number, code = rank.member.number, rank.code or 0
            if self._group is not None and self._group.ended(number, code):
                rank.spared = bool(code)
                if rank.spared:  # nothing of it may be in the way of those who go on
                    guardian.kill_sessions([rank.process.pid])
                if self._group.replaces(number, code):
                    self._start_another(rank)
            elif self._group is not None and self._group.shortage:
                self._end(outcome.too_few(self._group.shortage, rank), now, signal.SIGTERM)
            elif rank.code:
                self._take_failure(rank, rank.code, now)
        led = any(rank.member.role.leads and rank.code == 0 for rank in self._ranks)
        beside = any(rank.member.role.beside and rank.code is None for rank in self._ranks)
        if dead and led and not beside:
            self._end(None, now + self._limits.grace, signal.SIGTERM)

    def _take_failure(self, failed: Rank, code: int, now: float) -> None:
        role = failed.member.role
        stopped = [rank for rank in self._ranks if rank.member.role.stalls and rank.is_stopped]
        others = [rank for rank in self._ranks if rank.member.role is role and rank.code is None]
        how = f"{ending(code)} after {now - self._started:.1f} s"
        led = any(rank.member.role.leads and rank.code is None for rank in self._ranks)
        if role.restarts and led and failed.restarts < self._limits.restarts and not self._ending:
            self._start_again(failed, how, self._limits.restarts)
        elif (role.beside or (role.spare and others)) and not self._ending:
            failed.spared = True
            then = "training does not need it" if role.beside else "training goes on without it"
            self._streams.say(f"{failed.name} {how}; {then}")
        elif stopped and not self._ending:  # the stopped rank made the others give up
            then = f", and {failed.name} then {ending(code)}"
            self._end(outcome.stopped(stopped[0], then), now, signal.SIGTERM)
        else:
            self._first_failure = self._first_failure or now
            self._end(None, now + role.settle, signal.SIGTERM)

    def _look_for_stopped_ranks(self, now: float) -> None:
        for rank in self._ranks:
            if not rank.member.role.stalls or rank.stopped_for(now) < self._limits.stall:
                continue
            if self._group is not None and self._group.can_spare(rank.member.number):
                self._streams.say(
                    f"{rank.name} was stopped (SIGSTOP) for too long, so it is killed"
                )
                rank.signal(signal.SIGKILL)
            else:
                then = f" for more than {self._limits.stall:g} s, so the job was ended"
                self._end(outcome.stopped(rank, then), now, signal.SIGTERM)

    def _take_signals(self, received: int) -> None:
        for number in os.read(received, 4096):
            if number == signal.SIGWINCH:
                self._streams.resize()
            elif number == signal.SIGUSR1:
                self._add_one()
            elif number != signal.SIGCHLD:
                self._interrupt(signal.Signals(number))

    def _interrupt(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._told < math.inf:  # asked twice, or the ranks are already ending: be quick
            self._to_send = [(now, signal.SIGKILL)]
            if self._group is not None:
                self._group.hurry()
        else:
            self._end(outcome.ended_by(number), now, (self._group or JobGroup()).passed_on(number))

    def _end_after(self, decided: Outcome, seconds: float) -> None:
        self._end(decided, time.monotonic() + seconds, signal.SIGTERM)

    def _end(self, decided: Outcome | None, when: float, number: signal.Signals) -> None:
        """Ends the job: sends the signal `number` at the time `when`, unless it ends earlier.

        Args:
            decided: the outcome; None if it follows from how the ranks end. The first call counts.
            when: the time.
            number: the signal.
        """
        if not self._ending:
            self._ending = True
            self._outcome = decided
            if self._group is not None:
                self._group.end()
        elif self._told < math.inf or when >= self._to_send[0][0]:
            return
        self._to_send = [(when, number), (when + self._limits.grace, signal.SIGKILL)]

    def _drain(self, received: int) -> None:
        self._selector.unregister(received)
        if self._remote is not None and self._remote in self._selector.get_map():
            self._selector.unregister(self._remote)
        if self._group is not None:
            self._group.unwatch()
        if self._watching is not None:
            self._watching.close()
        self._streams.drain()
