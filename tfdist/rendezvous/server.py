"""The meeting place: waits for all launchers, and ends the job on all machines when one fails."""

from __future__ import annotations

import dataclasses
import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.cluster.machines import Machine
from tfdist.rendezvous.channel import Channel, NotAuthenticatedError
from tfdist.rendezvous.end import End
from tfdist.strategies.backend import Environments

_LOOK = 0.2  # seconds between two looks at the clock


@dataclasses.dataclass
class _Launcher:
    """A launcher that has come.

    Attributes:
        channel: the connection to it.
        terms: what all launchers must have been given alike.
        machine: its machine.
        serves: whether its process is the one that serves.
        end: how its ranks have ended; None until then.
    """

    channel: Channel
    terms: dict[str, Any]
    machine: Machine
    serves: bool
    end: End | None = None


class Server:
    """Serves one job, in threads of its own.

    Args:
        listener: listens at the rendezvous.
        secret: what the launchers know.
        machines: how many launchers there must be.
        patience: seconds to wait for them.
        across: makes the variables of all ranks; see `tfdist.strategies.backend.Launch`.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        machines: int,
        patience: float,
        across: Callable[[Sequence[Machine]], Environments],
    ):
        self._listener = listener
        self._secret = secret
        self._machines = machines
        self._patience = patience
        self._across = across
        self._events: queue.Queue[tuple[_Launcher, End | None]] = queue.Queue()
        self._launchers: list[_Launcher] = []
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        for target in (self._thread, threading.Thread(target=self._accept, daemon=True)):
            target.start()

    def join(self) -> None:
        """Waits until all launchers know how the job has ended, or are gone."""
        self._thread.join()

    # --- connections ----------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed: the job has begun
                return
            threading.Thread(target=self._greet, args=[connection], daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, self._secret, serves=True)
            said = channel.receive()
        except (OSError, ValueError, NotAuthenticatedError):
            connection.close()  # the other side says why, if it is a launcher
            return
        launcher = _Launcher(channel, said["terms"], Machine(**said["machine"]), said["serves"])
        self._events.put((launcher, None))
        self._listen_to(launcher)

    def _listen_to(self, launcher: _Launcher) -> None:
        host = launcher.machine.host
        try:
            end = dataclasses.replace(End(**launcher.channel.receive()), host=host)
        except (OSError, ValueError, NotAuthenticatedError) as error:
            end = End(1, f"its launcher is gone: {error}", host=host)
        self._events.put((launcher, end))

    # --- the job --------------------------------------------------------------------------------

    def _serve(self) -> None:
        refusal = self._gather()
        self._listener.close()
        if refusal is not None:
            self._tell_all({"refused": refusal})
            return
        self._launchers.sort(key=lambda launcher: not launcher.serves)
        machines = [launcher.machine for launcher in self._launchers]
        try:
            with self._across(machines) as variables:
                self._begin(machines, variables)
                self._watch()
        except (OSError, ImportError) as error:
            self._tell_all({"refused": str(error)})

    def _gather(self) -> str | None:
        """Waits for all launchers. Returns why the job cannot begin, if so."""
        end = time.monotonic() + self._patience
        while len(self._launchers) < self._machines:
            if time.monotonic() > end:
                came = ", ".join(launcher.machine.host for launcher in self._launchers)
                return (
                    f"{len(self._launchers)} of {self._machines} machines came to the rendezvous "
                    f"within {self._patience:g} s: {came}. Start the same command on the others, "
                    "or wait longer (--connect-timeout)"
                )
            try:
                launcher, end_of_it = self._events.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if end_of_it is not None:  # gone again before the job began
                self._launchers.remove(launcher)
                continue
            self._launchers.append(launcher)
            first = self._launchers[0]
            for name, given in first.terms.items():
                if launcher.terms.get(name) == given:
                    continue
                return (
                    f"All launchers must be given the same {name}. Received: "
                    f"{given!r} on {first.machine.host}, and "
                    f"{launcher.terms.get(name)!r} on {launcher.machine.host}"
                )
        return None

    def _begin(self, machines: Sequence[Machine], variables: Sequence[dict[str, str]]) -> None:
        firsts = itertools.accumulate((len(m.ports) for m in machines), initial=0)
        for launcher, machine, first in zip(self._launchers, machines, firsts):
            own = variables[first : first + len(machine.ports)]
            self._tell(launcher, {"first": first, "ranks": len(variables), "variables": own})

    def _watch(self) -> None:
        """Tells all launchers of the first failure, and at the end of the one that caused it."""
        cause: End | None = None
        while any(launcher.end is None for launcher in self._launchers):
            launcher, end = self._events.get()
            if end is None or launcher not in self._launchers:
                continue  # it came too late
            launcher.end = end
            if end.status and cause is None:
                for other in self._launchers:
                    if other.end is None:
                        self._tell(other, {"failed": dataclasses.asdict(end)})
            if end.status and (cause is None or cause.by_others > end.by_others):
                cause = end
        self._tell_all({"end": dataclasses.asdict(cause or End())})

    def _tell_all(self, message: dict[str, Any]) -> None:
        for launcher in self._launchers:
            self._tell(launcher, message)

    def _tell(self, launcher: _Launcher, message: dict[str, Any]) -> None:
        try:
            launcher.channel.send(message)
        except OSError:
            pass  # it is gone, which the thread that listens to it has noted
