"""How far the clocks of the processes are apart.

An operation ends in one process only after it has begun in the other one. So when it begins there,
it is not later than it ends here. Each operation bounds the offset from both sides, and the bounds
of many operations are close. This is the method of Cristian, "Probabilistic clock synchronization"
(Distributed Computing 3, 1989), with an operation in which both give and take.

The processes of one machine read the same clock, so their offset is 0.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.engines.contract import Engine
    from tfdist.engines.processes import Processes

Interval = tuple[int, int]
"""When an operation began and ended, in nanoseconds of the process' clock."""

_TIMES, _MOST_SECONDS = 20, 2.0

_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True)
class Clock:
    """How far a process' clock is ahead of that of rank 0.

    Attributes:
        offset_seconds: negative if it is behind.
        error_seconds: the true offset differs from it by no more than this.
    """

    offset_seconds: float
    error_seconds: float


def clock_of(own: Sequence[Interval], others: Sequence[Interval]) -> Clock:
    """How far the other process' clock is ahead of the own one.

    Args:
        own: the operations, by the own clock.
        others: the same operations, by the other clock.

    Example:

    >>> from tfdist.engines.clocks import clock_of
    >>> clock_of([(0, 10), (20, 24)], [(1003, 1010), (1021, 1025)])
    Clock(offset_seconds=9.99e-07, error_seconds=2e-09)
    """
    least = max(begun - ended for (begun, _), (_, ended) in zip(others, own))
    most = min(ended - begun for (_, ended), (begun, _) in zip(others, own))
    return Clock((least + most) / 2e9, (most - least) / 2e9)


def machine_number() -> int:
    """A number that only processes with this one's kernel have, and so with its clock."""
    try:
        boot = uuid.UUID(_BOOT.read_text().strip())
    except (OSError, ValueError):
        boot = uuid.uuid4()
    return boot.int >> 65  # 63 bits, as processes gather integers within int64


def clocks_of(engine: Engine, error_seconds: float, machine: int | None = None) -> list[Clock]:
    """The clock of each process, the same list in all of them. All processes call it.

    Args:
        engine: carries tensors between pairs; any engine if there is one process.
        error_seconds: operations are repeated until the error is at most this, or until they have
            taken 2 seconds in all.
        machine: what the processes of a machine have in common; `machine_number()` if None. Clocks
            of machines that were copied while they ran have equal numbers, but may have been set
            since: they count as one only if the operations agree.
    """
    processes = engine.processes
    own_machine = machine_number() if machine is None else machine
    if processes.may_change:
        return _clocks_of_group(processes, own_machine, error_seconds)
    machines = processes.all_gather([own_machine])[:, 0].tolist()
    found = [Clock(0.0, 0.0)]
    taken = 0.0
    for other in range(1, processes.size):
        pair = (0, other) if processes.rank in (0, other) else None
        own: list[Interval] = []
        others: list[Interval] = []
        while True:
            rows = processes.all_gather(_swaps(engine, pair)).reshape([processes.size, _TIMES, 2])
            own += [tuple(row) for row in rows[0].tolist()]
            others += [tuple(row) for row in rows[other].tolist()]
            taken += _seconds(own[-_TIMES:])
            clock = _same_or_measured(machines[0] == machines[other], clock_of(own, others))
            if clock.error_seconds <= error_seconds or taken >= _MOST_SECONDS:
                break
        found.append(clock)
    return found


def _clocks_of_group(processes: Processes, machine: int, error_seconds: float) -> list[Clock]:
    """As `clocks_of`, where processes may be lost meanwhile: by sums over all of them.

    A sum ends nowhere before all that are left have begun it, even if it was repeated.
    """
    import tensorflow as tf

    own: list[int] = []
    while True:
        for _ in range(_TIMES):
            begun = [time.time_ns()]

            def nothing(begun: list[int] = begun) -> tf.Tensor:
                begun.append(time.time_ns())
                return tf.zeros([1])

            processes.sum_of(nothing).numpy()
            own += [begun[-1], time.time_ns()]
        rows = processes.all_gather([machine, *own])
        machines = rows[:, 0].tolist()
        first, *others = rows[:, 1:].reshape([len(rows), -1, 2]).tolist()
        found = [Clock(0.0, 0.0)]
        for number, other in zip(machines[1:], others):
            found.append(_same_or_measured(number == machines[0], clock_of(first, other)))
        is_enough = max(clock.error_seconds for clock in found) <= error_seconds
        if is_enough or _seconds(first) >= _MOST_SECONDS:
            return found


def _same_or_measured(is_one_machine: bool, measured: Clock) -> Clock:
    """No offset on one machine, unless what was measured says that there is one."""
    if is_one_machine and abs(measured.offset_seconds) <= measured.error_seconds:
        return Clock(0.0, 0.0)
    return measured


def _seconds(operations: Sequence[Interval]) -> float:
    """How long operations took, with what was between them."""
    return (operations[-1][1] - operations[0][0]) / 1e9


def _swaps(engine: Engine, pair: tuple[int, int] | None) -> list[int]:
    """When some operations of a pair begin and end in this process."""
    import tensorflow as tf

    assert engine.pairs is not None
    tiny, times = tf.zeros([2]), []
    for _ in range(_TIMES):
        times.append(time.time_ns())
        engine.pairs.swap(tiny, pair).numpy()
        times.append(time.time_ns())
    return times
