"""Which parameter servers are lost, and how the chief connects to them when they are back."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.cluster.reaching import unreachable
from tfdist.parameter_server.chief import errors

# Seconds between two attempts to read from a server that is back: gRPC, which has found that nobody
# answers, tries again after a while.
_PAUSE = 0.2
# Seconds after which a worker that does not answer counts as lost too, and is left out.
_ATTEMPT = 5.0
# A process that is being killed takes connections for so many seconds at most.
_MOMENT = 1.0


class Servers:
    """The parameter servers of a strategy, as the chief sees them.

    Args:
        addresses: the addresses of all processes, by job.
        devices: the devices of the parameter servers.
        coordinator: the coordinator.
    """

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        devices: Sequence[str],
        coordinator: compat.Coordinator,
    ):
        self._addresses = addresses
        self._devices = devices
        self._coordinator = coordinator
        compat.connect_when(coordinator, self._wait_for_all)
        # A variable on each server. A server that was started again does not have it.
        self._marks: dict[int, tf.Variable] = {}

    def watch(self) -> None:
        """Marks all servers that have no mark yet."""
        for number, device in enumerate(self._devices):
            if number not in self._marks:
                with tf.init_scope(), tf.device(device):
                    self._marks[number] = compat.plain_variable(tf.constant(0))

    def lost(self) -> list[int]:
        """The numbers of the servers that do not answer, or were started again."""
        return [number for number, mark in self._marks.items() if not _answers(mark)]

    def lost_by(self, error: Exception) -> set[int]:
        """Those that are lost now, and those that did not answer: work may have been lost there."""
        return {*self.lost(), *errors.servers_that_did_not_answer(error)}

    def names(self, numbers: Collection[int]) -> str:
        """Servers and their addresses, for messages."""
        return ", ".join(f"ps {n} ({self._addresses['ps'][n]})" for n in numbers)

    def connect(self, numbers: Collection[int], end: float) -> None:
        """Waits until servers are back, and connects all processes to them but lost workers.

        Args:
            numbers: the numbers of the servers that were lost.
            end: when to give up, by `time.monotonic`.

        Raises:
            TimeoutError: when a server cannot be reached; the message says which.
        """
        missing = unreachable(self._named("ps"), max(0.0, end - time.monotonic()))
        if missing:
            raise TimeoutError(f"{', '.join(missing)} could not be reached")
        without = {
            worker
            for worker, (name, address) in enumerate(self._named("worker").items())
            if unreachable({name: address}, _ATTEMPT)
        }
        connecting = _Connecting(self._coordinator, without)
        connecting.join(max(0.0, end - time.monotonic()))
        if connecting.is_alive():
            raise TimeoutError("TensorFlow could not connect to the server")
        if connecting.error is not None:
            raise connecting.error
        for number in numbers:
            self._marks.pop(number, None)
        workers = set(range(len(self._addresses["worker"]))) - without
        self._wait_until_read(sorted(workers), end)

    def _wait_for_all(self) -> None:
        """Waits until no server is lost."""
        wait_for({**self._named("ps"), **self._named("worker")})

    def _named(self, job: str) -> dict[str, str]:
        return {f"{job} {number}": address for number, address in enumerate(self._addresses[job])}

    def _wait_until_read(self, workers: Sequence[int], end: float) -> None:
        """Waits until the chief and all workers can read from all servers."""
        while True:
            try:
                self.watch()
                read = tf.function(
                    lambda: [tf.identity(mark.read_value()) for mark in self._marks.values()],
                    autograph=False,
                )
                for worker in workers:
                    with tf.init_scope(), tf.device(f"/job:worker/replica:0/task:{worker}"):
                        read()
                return
            except tf.errors.OpError as error:
                if time.monotonic() >= end:
                    raise TimeoutError("a worker could not connect to the server") from error
                time.sleep(_PAUSE)


class _Connecting(threading.Thread):
    """Connects again, in a thread, because TensorFlow waits for a server without end."""

    def __init__(self, coordinator: compat.Coordinator, without: Collection[int]):
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._arguments = coordinator, tuple(without)
        self.start()

    def run(self) -> None:
        """Connects."""
        try:
            compat.connect_again(*self._arguments)
        except Exception as error:
            self.error = error


def wait_for(named: Mapping[str, str]) -> None:
    """Waits until all take connections, and still do so a moment later.

    A process that is being killed may lose its connections before it stops to take new ones. Who
    took it for a living one would wait for it with TensorFlow's lock, and hold up all others.

    Args:
        named: addresses, by any name.
    """
    times = 0
    while times < 2:
        times = 0 if unreachable(named, _ATTEMPT) else times + 1
        if times == 1:
            time.sleep(_MOMENT)


def _answers(mark: tf.Variable) -> bool:
    try:
        mark.numpy()
    except tf.errors.OpError:
        return False
    return True
