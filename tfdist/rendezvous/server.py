"""The meeting place: waits for all launchers, and ends the job on all machines when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from tfdist.cluster.machines import Machine
from tfdist.rendezvous.channel import Channel, Message
from tfdist.rendezvous.end import End
from tfdist.rendezvous.reception import Reception
from tfdist.rendezvous.terms import FixedTerms

_LOOK = 0.2  # seconds between two looks at the clock
_PATIENCE = 30.0  # seconds for the others to end, once the launcher here has ended
_SPARE_GREETINGS = 16
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError)


@dataclasses.dataclass
class _Launcher:
    """A launcher that has come.

    Attributes:
        channel: the connection to it.
        machine: its machine.
        serves: whether its process is the one that serves.
        same_everywhere: as in its `Terms`.
        end: how its ranks have ended; None until then.
    """

    channel: Channel
    machine: Machine
    serves: bool
    same_everywhere: dict[str, Any]
    end: End | None = None


class _Come:
    """The event that a launcher has come."""


class _Gone:
    """The event that the connection to a launcher has broken."""


class Server:
    """Serves one job, in threads of its own.

    Args:
        listener: listens at the rendezvous.
        terms: what the launchers agree on.
    """

    def __init__(self, listener: socket.socket, terms: FixedTerms):
        self._terms = terms
        self._events: queue.Queue[tuple[_Launcher | None, _Come | _Gone | End]] = queue.Queue()
        self._launchers: list[_Launcher] = []
        self._known: dict[Channel, _Launcher] = {}
        greetings = 2 * terms.machines + _SPARE_GREETINGS
        self._reception = Reception(listener, terms.secret, greetings, self._receive)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def stop(self, end: End) -> None:
        """Ends the job, unless it has ended, and waits until all launchers were told.

        Args:
            end: how the launcher that serves has ended.
        """
        self._events.put((None, end))
        self._thread.join()

    # --- connections ----------------------------------------------------------------------------

    def _receive(self, channel: Channel, message: Message | None) -> None:
        """Takes a message, or None at the end; in the channel's own thread."""
        launcher = self._known.get(channel)
        try:
            if message is None:
                if self._known.pop(channel, None) is not None:
                    self._events.put((launcher, _Gone()))
            elif launcher is None:
                machine = Machine(**message["machine"])
                launcher = _Launcher(channel, machine, message["serves"], message["terms"])
                self._known[channel] = launcher
                self._events.put((launcher, _Come()))
            else:
                end = End(**message)
                end = dataclasses.replace(end, host=launcher.machine.host)
                self._events.put((launcher, end))
        except _MALFORMED:
            channel.close()  # which ends its thread

    # --- the job --------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            refusal = self._gather()
            self._reception.close()
            if refusal is not None:
                self._tell_all({"refused": refusal})
                return
            self._launchers.sort(key=lambda launcher: not launcher.serves)
            machines = [launcher.machine for launcher in self._launchers]
            with self._terms.across(machines) as variables:
                self._begin(machines, variables)
                self._watch()
        except Exception as error:  # whatever it is, nobody may wait for this thread
            self._tell_all({"refused": str(error)})
        finally:
            self._reception.close()
            for launcher in self._launchers:
                launcher.channel.close()

    def _gather(self) -> str | None:
        """Waits for all launchers. Returns why the job cannot begin, if so."""
        terms = self._terms
        end = time.monotonic() + terms.patience
        while len(self._launchers) < terms.machines:
            if time.monotonic() > end:
                came = ", ".join(launcher.machine.host for launcher in self._launchers)
                return (
                    f"{len(self._launchers)} of {terms.machines} machines came to the rendezvous "
                    f"within {terms.patience:g} s: {came or 'none'}. Start the same command on the "
                    "others, or wait longer (--connect-timeout)"
                )
            try:
                launcher, event = self._events.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if launcher is None:
                return "the launcher that serves the rendezvous has ended"
            if isinstance(event, _Come):
                refusal = self._take(launcher)
                if refusal is not None:
                    return refusal
            elif launcher in self._launchers:
                self._launchers.remove(launcher)
                terms.say(f"{launcher.machine.host} has left ({self._count()})")
        return self._lack()

    def _lack(self) -> str | None:
        """Why the machines are no job together, if so."""
        ranks = sum(launcher.machine.ranks for launcher in self._launchers)
        reducers = sum(launcher.machine.reducers for launcher in self._launchers)
        if reducers and ranks < 2:
            return (
                "Reducers sum what several ranks send them, so -n of all machines together must be "
                f"at least 2. Received: {ranks}, and {reducers} reducer(s)"
            )
        return None

    def _take(self, launcher: _Launcher) -> str | None:
        """Takes a launcher that has come. Returns why there can be no job with it, if so."""
        self._launchers.append(launcher)
        refusal = self._terms.refusal(
            self._launchers[0].machine.host, launcher.same_everywhere, launcher.machine.host
        )
        if refusal:
            return refusal
        processes = len(launcher.machine.ports)
        self._terms.say(
            f"{launcher.machine.host} has come with {processes} process(es) ({self._count()})"
        )
        return None

    def _count(self) -> str:
        return f"{len(self._launchers)} of {self._terms.machines} machines"

    def _begin(self, machines: Sequence[Machine], variables: Sequence[dict[str, str]]) -> None:
        first = reducer = begin = 0
        ranks = sum(machine.ranks for machine in machines)
        for launcher, machine in zip(self._launchers, machines):
            end = begin + len(machine.ports)
            numbers = {"first": first, "first_reducer": reducer, "ranks": ranks}
            self._tell(launcher, {**numbers, "variables": variables[begin:end]})
            first, reducer, begin = first + machine.ranks, reducer + machine.reducers, end

    def _watch(self) -> None:
        """Tells all launchers of the first failure, and at the end of the one that caused it."""
        cause: End | None = None
        patience: float | None = None
        while any(launcher.end is None for launcher in self._launchers):
            try:
                launcher, event = self._events.get(timeout=patience)
            except queue.Empty:  # a launcher is stopped, or its network is cut
                break
            if launcher is None and isinstance(event, End):  # the launcher here has ended
                launcher, patience = self._launchers[0], _PATIENCE
                event = dataclasses.replace(event, host=launcher.machine.host)
            if launcher not in self._launchers or isinstance(event, _Come):
                self._refuse_late(launcher)
                continue
            assert launcher is not None
            if isinstance(event, _Gone):
                if launcher.end is not None:  # its ranks had ended before
                    continue
                event = End(1, "its launcher is gone", host=launcher.machine.host)
            launcher.end = event
            if not event.status:
                continue
            if cause is None:
                for other in self._launchers:
                    if other.end is None:
                        self._tell(other, {"failed": dataclasses.asdict(event)})
            if cause is None or cause.by_others > event.by_others:
                cause = event
        self._tell_all({"end": dataclasses.asdict(cause or End())})

    def _refuse_late(self, launcher: _Launcher | None) -> None:
        if launcher is not None:
            self._tell(launcher, {"refused": "the job at this rendezvous has begun already"})
            launcher.channel.close()

    def _tell_all(self, message: Message) -> None:
        for launcher in self._launchers:
            self._tell(launcher, message)

    def _tell(self, launcher: _Launcher, message: Message) -> None:
        # If it is gone, the thread that listens to it has noted that.
        with contextlib.suppress(OSError):
            launcher.channel.send(message)
