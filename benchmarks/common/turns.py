"""Processes that wait until it is their turn to measure.

The process that measures connects to the benchmark. It first says what it has found. Then, each
time that it is asked, it says how long a number of calls took.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

# Seconds that a process may take until it is ready, and for one turn.
START_SECONDS, TURN_SECONDS = 300, 120
_PORT = "BENCHMARK_PORT"


class Measuring:
    """A process that measures when it is told to.

    Args:
        connection: the connection to the process.
        log: what the process has printed.

    Attributes:
        found: what the process said when it was ready.
    """

    def __init__(self, connection: IO[str], log: Path):
        self._connection = connection
        self._log = log
        self.found: dict[str, Any] = self._answer()

    def seconds(self, calls: int) -> float:
        """The mean seconds of so many calls.

        Raises:
            RuntimeError: when the process has ended.
        """
        self._connection.write(f"{calls}\n")
        self._connection.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._connection.readline()
        if not line:
            raise RuntimeError(f"A process has ended:\n{_end(self._log)}")
        return json.loads(line)


@contextlib.contextmanager
def measuring(
    command: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> Iterator[Measuring]:
    """Starts a process that calls `take_turns`. In this context the process is ready to measure.

    Args:
        command: the command of the process.
        folder: its working folder.
        variables: its environment variables.

    Raises:
        RuntimeError: when the process ends before it is ready, or is not ready in time.
    """
    with contextlib.ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()), "log")
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        environment = {**variables, _PORT: str(server.getsockname()[1])}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        stack.callback(_end_process, process)
        connection = stack.enter_context(_accepted(server, process, log))
        connection.settimeout(START_SECONDS)
        yield Measuring(stack.enter_context(connection.makefile("rw")), log)


def take_turns(found: Mapping[str, Any], seconds: Callable[[int], float]) -> None:
    """Measures whenever the benchmark asks, until the benchmark ends.

    Args:
        found: for `Measuring.found`.
        seconds: how long each of so many calls takes.
    """
    address = ("127.0.0.1", int(os.environ[_PORT]))
    with socket.create_connection(address) as connection, connection.makefile("rw") as file:
        file.write(f"{json.dumps(dict(found))}\n")
        file.flush()
        for line in file:
            file.write(f"{json.dumps(seconds(int(line)))}\n")
            file.flush()


def _accepted(server: socket.socket, process: subprocess.Popen, log: Path) -> socket.socket:
    server.settimeout(0.5)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            return server.accept()[0]
        if process.poll() is not None:
            break
    raise RuntimeError(f"{' '.join(map(str, process.args))} was not ready:\n{_end(log)}")


def _end_process(process: subprocess.Popen) -> None:
    """Waits for a process that has nothing left to do, and ends it if it does not end."""
    try:
        process.wait(TURN_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
