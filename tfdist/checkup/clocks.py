"""How far the clocks of two processes are apart; needs no TensorFlow.

An operation ends in one process only after it has begun in the other one. So when it begins there,
it is not later than it ends here. Each operation bounds the offset from both sides, and the bounds
of many operations are close. This is the method of Cristian, "Probabilistic clock synchronization"
(Distributed Computing 3, 1989), with an operation in which both give and take.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.checkup.report import Clock

Interval = tuple[int, int]
"""When an operation began and ended, in nanoseconds of the process' clock."""


def clock_of(own: Sequence[Interval], others: Sequence[Interval]) -> Clock:
    """How far the other process' clock is ahead of the own one.

    Args:
        own: the operations, by the own clock.
        others: the same operations, by the other clock.

    Example:

    >>> from tfdist.checkup.clocks import clock_of
    >>> clock_of([(0, 10), (20, 24)], [(1003, 1010), (1021, 1025)])
    Clock(offset_seconds=9.99e-07, error_seconds=2e-09)
    """
    least = max(begun - ended for (begun, _), (_, ended) in zip(others, own))
    most = min(ended - begun for (_, ended), (begun, _) in zip(others, own))
    return Clock((least + most) / 2e9, (most - least) / 2e9)
