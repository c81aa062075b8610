"""Starts ranks so that no process of theirs is left, even when the launcher is killed at once.

This file is also run as a script, without the rest of tfdist, in two roles:

- `guardian.py watch` is a process of its own. It reads the session of each rank from its standard
  input. If the input ends without "done", the launcher has died. Then `watch` kills these sessions:
  they contain all processes that the ranks have started.
- `guardian.py start FD PROGRAM ARGUMENTS...` is how each rank begins. It tells the guardian its
  session, and then becomes the program. It tells this before it starts anything, and the guardian's
  input cannot end earlier. So there is no moment in which a rank could be lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from typing import IO, Any

_PYTHON = (sys.executable, "-I", "-S", os.path.abspath(__file__))
_DONE = b"done\n"


class Guardian:
    """The process that ends all ranks when the launcher dies; a context manager.

    Example:

    >>> import sys
    >>> from tfdist.launcher.guardian import Guardian
    >>> with Guardian() as guardian:
    ...     guardian.start([sys.executable, "-c", "pass"]).wait()
    0
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*_PYTHON, "watch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(
        self, command: list[str], *, pass_fds: Collection[int] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts `command` in a session of its own, with the options of `subprocess.Popen`."""
        pipe = self._pipe.fileno()
        return subprocess.Popen(
            [*_PYTHON, "start", str(pipe), *command],
            start_new_session=True,
            pass_fds=(*pass_fds, pipe),
            **options,
        )

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.write(_DONE)
            self._pipe.close()
        self._process.wait()


def members(sessions: Collection[int]) -> list[int]:
    """The processes, other than zombies, that are in one of `sessions`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            state, session = _stat(int(name))
            if session in sessions and state != "Z":
                found.append(int(name))
    return found


def state(pid: int) -> str:
    """The state of a process as the kernel shows it: "R", "S", "T" for stopped, ...; or ""."""
    return _stat(pid)[0]


def _stat(pid: int) -> tuple[str, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return fields[0].decode(), int(fields[3])
    except (OSError, IndexError, ValueError):
        return "", -1


def kill_sessions(sessions: Collection[int]) -> None:
    """Kills every process of `sessions`, also processes that start meanwhile."""
    if not os.path.isdir("/proc/self"):
        for session in sessions:
            with contextlib.suppress(OSError):
                os.killpg(session, signal.SIGKILL)
        return
    for _ in range(200):
        alive = members(sessions)
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _watch() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sessions = set()
    for line in sys.stdin.buffer:
        if line == _DONE:
            return
        sessions.add(int(line))
    kill_sessions(sessions)


def _start(pipe: str, *command: str) -> None:
    os.write(int(pipe), b"%d\n" % os.getpid())
    os.close(int(pipe))
    os.execv(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        _watch()
    else:
        _start(*sys.argv[2:])
