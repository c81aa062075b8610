"""The connection of a rank to its launcher, which says who is in the group; needs no TensorFlow.

The connection is a pair of sockets that the rank inherits, so nobody else can reach it. Messages
are lines of JSON with a kind and the number of a group.

The rank says "ready" when it is in no group: where it listens, how many operations it has done,
whether others may join now, and whether it has written all that into the journal. It says "formed"
when it is in the new group, "settled" when it has the state of that group, "leaving" when it was
asked to end, "left" when the others have its state, and "done" at the end of its script. One that
was started later says "near" when it has done almost all that the others have done, and "joined"
when it has their state. A reducer only says "ready" and "formed".

The launcher says "form" with a `Formation`, "go" once all members have formed the group, "settled"
once all have its state, "interrupt" when the group is no more, "end" to those who are done, and
"quit" to those who asked to leave but cannot be replaced. It says "begin" to a rank that waits to
be called (`tfdist.launcher.spare`). "save" asks for a backup, after which the rank says "saved",
and why not if that failed. "take_in" asks to come back before the next step, as a rank waits to
join; "meet" tells that rank after how many operations they wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable

from tfdist.elastic.formation import Formation


class LauncherGoneError(RuntimeError):
    """The launcher has ended, and with it the job."""


class Link:
    """The connection of this process.

    Args:
        descriptor: the inherited socket.

    Attributes:
        has_left: whether this process has told the launcher that the others have its state.
        takes_in: whether this process is to come back before its next step, as others wait to join.
    """

    def __init__(self, descriptor: int):
        self._socket = socket.socket(fileno=descriptor)
        self._inbox: queue.Queue[dict] = queue.Queue()
        self.has_left = False
        self.takes_in = False

    def listen(self, interrupt: Callable[[int], None]) -> None:
        """Begins to receive, in a thread.

        Args:
            interrupt: called in that thread with the number of a group that is no more.
        """
        threading.Thread(target=self._listen, args=(interrupt,), daemon=True).start()

    def _listen(self, interrupt: Callable[[int], None]) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message["kind"] == "interrupt":
                    interrupt(message["generation"])
                elif message["kind"] == "take_in":
                    self.takes_in = True
                elif message["kind"] == "form":
                    self.takes_in = message["formation"]["waiting"]
                elif message["kind"] == "quit":
                    os.kill(os.getpid(), signal.SIGTERM)
                self._inbox.put(message)
        self._inbox.put({"kind": "gone"})

    def say(self, kind: str, **details: object) -> None:
        """Sends a message; also from a signal handler."""
        line = json.dumps({"kind": kind, **details}).encode() + b"\n"
        self.has_left = self.has_left or kind == "left"
        with contextlib.suppress(OSError):  # whoever waits for an answer learns of it
            os.write(self._socket.fileno(), line)

    def formation(self, save: Callable[[], None] | None = None) -> Formation:
        """The next group that this process is to form. Waits for it.

        Args:
            save: keeps the state of this process, if the launcher asks for it meanwhile.

        Raises:
            LauncherGoneError: when there is no launcher any more.
        """
        while (message := self._next())["kind"] != "form":
            if message["kind"] == "save" and save is not None:
                self.say("saved", question=message["question"], why=_outcome_of(save))
        return Formation(**message["formation"])

    def next_formation(self) -> Formation | None:
        """The next group for which this process, a reducer, sums; None at the end of the job.

        Raises:
            LauncherGoneError: when there is no launcher any more.
        """
        while (message := self._next())["kind"] not in ("form", "end"):
            pass
        return Formation(**message["formation"]) if message["kind"] == "form" else None

    def meeting_point(self, seconds: float) -> int | None:
        """After how many operations the others wait for this rank; None if that is not known.

        Args:
            seconds: how long to wait for the answer.

        Raises:
            LauncherGoneError: when there is no launcher any more.
        """
        with contextlib.suppress(queue.Empty):
            message = self._next(seconds)
            return message["completed"] if message["kind"] == "meet" else None
        return None

    def waits_for(self, kind: str, generation: int) -> bool:
        """Waits until the launcher says `kind` of a group.

        Returns:
            False if that group is no more.

        Raises:
            LauncherGoneError: when there is no launcher any more.
        """
        while True:
            message = self._next()
            if message.get("generation") == generation and message["kind"] in (kind, "interrupt"):
                return message["kind"] == kind

    def wait_for_end(self, seconds: float) -> None:
        """Waits until this process may end, or until so many seconds have passed."""
        with contextlib.suppress(queue.Empty, LauncherGoneError):
            while self._next(seconds)["kind"] != "end":
                pass

    def _next(self, seconds: float | None = None) -> dict:
        message = self._inbox.get(timeout=seconds)
        if message["kind"] == "gone":
            self._inbox.put(message)
            raise LauncherGoneError("The launcher of this job has ended, so this rank ends too.")
        return message


def _outcome_of(save: Callable[[], None]) -> str:
    """Why `save` has failed; "" if it has not."""
    try:
        save()
    except Exception as error:  # whatever an object's own code raises when it is pickled
        return f"{type(error).__name__}: {error}"
    return ""
