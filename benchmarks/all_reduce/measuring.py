"""Seconds and bytes of messages and of steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from benchmarks.all_reduce import model
from benchmarks.all_reduce.execution import Messages, ScheduledEngine
from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes
from tfdist.plan.alpha_beta import Link
from tfdist.plan.schedule import Transfer, schedule

# How often each is measured. The least counts: what else runs on the machine is not the link's.
PINGS = 7
# How often an empty message goes there and back in a step, so that the step itself hardly counts.
TRIPS = 8


def measured_link(engine: Engine, messages: Messages) -> Link:
    """The link between rank 0 and rank 1, as messages of a schedule see it: in all ranks."""
    times = {model.EMPTY: ping_seconds(engine, messages, model.EMPTY, TRIPS)}
    times |= {size: ping_seconds(engine, messages, size, 1) for size in model.LONG}
    return model.fitted(times)


def ping_seconds(engine: Engine, messages: Messages, size: int, trips: int) -> float:
    """The seconds of a message, as rank 0 sees it: in all ranks.

    Each message is a round of a schedule, so it has all that a round costs a rank.

    Args:
        engine: of the strategy.
        messages: of this process.
        size: of the message, in bytes.
        trips: how often a message goes from rank 0 to rank 1 and back in a step.
    """
    processes = engine.processes
    there, back = Transfer(0, 1, 0, 1, False), Transfer(1, 0, 0, 1, False)
    pinging = ScheduledEngine(
        engine, schedule(processes.size, 1, [[there], [back]] * trips), messages
    )
    step = tf.function(lambda vector: pinging.all_reduce([vector])[0], autograph=False)
    vector, found = tf.ones([size // 4]), []
    for _ in range(1 + PINGS):
        processes.all_gather([0])
        start = time.perf_counter()
        step(vector)
        found.append((time.perf_counter() - start) / (2 * trips))
    # The first message also connects the two ranks.
    nanoseconds = int(1e9 * min(found[1:]))
    return int(processes.all_gather([nanoseconds])[0, 0]) / 1e9


class Meter:
    """Measures steps that all ranks begin together: what the rank with the most needs.

    The ranks do not leave the all-gather before a step at quite the same time, and who is early
    waits for the others. So all steps seem a little longer than they are, and ratios of short ones
    nearer to 1.

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
