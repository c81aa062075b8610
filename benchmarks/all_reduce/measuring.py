"""Seconds and bytes of messages and of steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from benchmarks.all_reduce.execution import Messages
from tfdist.engines.processes import Processes

# How often a message goes there and back; the median counts.
PINGS = 7


def ping_seconds(processes: Processes, messages: Messages, size: int) -> float:
    """The seconds of a message from rank 0 to rank 1, or back, as rank 0 sees it: in all ranks.

    Args:
        processes: of the job.
        messages: of this process.
        size: of the message, in bytes.
    """
    length = size // 4

    @tf.function(autograph=False)
    def there_and_back(vector: tf.Tensor) -> tf.Tensor:
        there = messages.message(0, 1, length, vector)
        back = messages.message(1, 0, length, there)
        with tf.control_dependencies([end for end in (there, back) if end is not None]):
            return tf.identity(vector)

    vector, found = tf.ones([length]), []
    for _ in range(1 + PINGS):
        processes.all_gather([0])
        start = time.perf_counter()
        there_and_back(vector).numpy()
        found.append((time.perf_counter() - start) / 2)
    # The first message also connects the two ranks.
    nanoseconds = int(1e9 * statistics.median(found[1:]))
    return int(processes.all_gather([nanoseconds])[0, 0]) / 1e9


class Meter:
    """Measures steps that all ranks begin together: what the rank with the most needs.

    Args:
        processes: of the job.
        interface: this rank's own, whose bytes are counted; None if ranks share one.
    """

    def __init__(self, processes: Processes, interface: str | None):
        self._processes = processes
        self._interface = interface
        # What the ranks send to begin and to end together.
        self._around = 0
        self._around = round(statistics.median(self.measured(_nothing)[1] for _ in range(5)))

    def measured(self, step: Callable[[], object]) -> tuple[float, int]:
        """The seconds of a step, and the bytes that it sends; 0 if they cannot be counted."""
        self._processes.all_gather([0])
        before, start = self._sent(), time.perf_counter_ns()
        step()
        nanoseconds = time.perf_counter_ns() - start
        slowest = int(self._processes.all_gather([nanoseconds]).max())
        sent = int(self._processes.all_gather([self._sent() - before]).max())
        return slowest / 1e9, max(sent - self._around, 0)

    def _sent(self) -> int:
        """What the interface has sent since it was made."""
        if self._interface is None:
            return 0
        return int(Path("/sys/class/net", self._interface, "statistics/tx_bytes").read_text())


def _nothing() -> None:
    pass
