"""Rounds that last a time: how many updates they have, and which process takes which samples."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import statistics
from collections.abc import Sequence

from tfdist.arguments import shown

# A plan is repeated after so many steps at most, so that it is quickly made.
_MOST_ROWS = 32
# A process that is nearly as fast as the fastest one takes part in each step.
_NEARLY = 0.9
# A process' speed is the median of so many rounds, so that one slow moment does not count.
_ROUNDS = 3
# A round has at most so many times the updates of the last one. What goes on between steps is not
# known after a round of one step, such as the first one, so a plan may promise too much.
_MOST_GROWTH = 4
_SHORTEST = 1e-6  # seconds
_PASSES = 30


def seconds_of(text: str) -> float:
    """The seconds in a text such as "2s" or "0.5s".

    Raises:
        ValueError: when it is no such text, not more than 0, or not finite.

    Example:

    >>> from tfdist.local.by_time import seconds_of
    >>> seconds_of("0.5s")
    0.5
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", text)
    seconds = float(found[1]) if found else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(
            "Give the number of updates of a round, such as `steps=8`, or how many seconds it is "
            f'to last, such as `steps="2s"`. Received: steps={shown(text)}'
        )
    return seconds


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the processes do in the next round.

    Attributes:
        updates: after how many updates they meet.
        rows: for each step the shares of the global batch that the processes take, with the sum 1;
            0 for a process that makes no step then. After the last row comes the first one again.
    """

    updates: int
    rows: tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one process has done in a round.

    Attributes:
        samples: how many samples its replicas have had.
        busy: the seconds in which it has made steps.
        lasted: the seconds from its first step to the end of its last one.
    """

    samples: float
    busy: float
    lasted: float


class Planner:
    """Plans rounds from what was measured in earlier ones.

    The plan depends on nothing else, so it is the same in all processes. It is computed with
    Python's own numbers, which are the same on all machines. Sums are exact (`math.fsum`): what
    `sum` rounds to depends on the version of Python.

    Args:
        seconds: how long a round is to last.
        processes: the number of processes.
    """

    def __init__(self, seconds: float, processes: int):
        self._seconds = seconds
        recent = collections.deque[float]
        self._speeds = [recent(maxlen=_ROUNDS) for _ in range(processes)]

    def first(self) -> Plan:
        """One update with even parts, to measure."""
        processes = len(self._speeds)
        return Plan(1, ((1 / processes,) * processes,))

    def next(self, measured: Sequence[Measured], updates: int, steps: int) -> Plan:
        """The plan of the next round.

        The time that a round takes is that of its slowest process, and what all of them need beside
        their steps. A round has at most four times the updates of the last one. What a process has
        measured does not count if the clock was set back.

        Args:
            measured: what each process has done in the last round.
            updates: how many updates the last round had.
            steps: how many steps it had; with accumulation, more than updates.
        """
        for recent, own in zip(self._speeds, measured):
            if _is_sound(own):
                recent.append(own.samples / own.busy)
        sound = [own for own in measured if _is_sound(own)]
        if not sound or not updates:
            return self.first()
        usual = statistics.fmean(statistics.median(recent) for recent in self._speeds if recent)
        speeds = [statistics.median(recent) if recent else usual for recent in self._speeds]
        samples = math.fsum(own.samples for own in measured)
        beside = max(own.lasted for own in sound) - max(own.busy for own in sound)
        needed = max(0.0, beside) + samples / math.fsum(speeds)
        of_update = max(needed / updates, _SHORTEST)
        number = max(1, round(min(self._seconds / of_update, _MOST_GROWTH * updates)))
        return Plan(number, rows_of(speeds, -(-number * steps // updates)))


def _is_sound(own: Measured) -> bool:
    return own.samples > 0 and own.busy > 0


def rows_of(speeds: Sequence[float], steps: int) -> tuple[tuple[float, ...], ...]:
    """Which part of each global batch the processes take, in proportion to their speeds.

    The fastest process takes part in each step. One that has half of its speed takes part in half
    of the steps, spread over the round, with parts that are on average about as large. So all
    processes make updates with about equally many samples, but slow ones fewer updates.

    All take part in the first step too. So each speed is measured in each round, however early it
    ends, and a process that was slow for a while comes back.

    The parts are fitted to the steps in which a process takes part by scaling rows and columns in
    turn (Deming and Stephan, "On a Least Squares Adjustment of a Sampled Frequency Table When the
    Expected Marginal Totals are Known", 1940).

    Args:
        speeds: samples per second of each process, more than 0.
        steps: the number of steps of a round.

    Returns:
        For each step the shares of all processes, with the sum 1. If there are many steps, they
        are repeated: then these are those of one repetition.

    Example:

    >>> from tfdist.local.by_time import rows_of
    >>> rows_of([100.0, 100.0], 4)
    ((0.5, 0.5), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5))
    >>> [[round(share, 2) for share in row] for row in rows_of([300.0, 100.0], 3)]
    [[0.63, 0.38], [1.0, 0.0], [0.63, 0.38]]
    """
    length = -(-steps // -(-steps // _MOST_ROWS))
    fastest, total = max(speeds), math.fsum(speeds)
    wanted = [speed / total * length for speed in speeds]
    rows = [[0.0] * len(speeds) for _ in range(length)]
    for number, speed in enumerate(speeds):
        places = _places(number / len(speeds), speed / fastest, length)
        for place in places:
            rows[place][number] = wanted[number] / len(places)
    for _ in range(_PASSES):
        rows = [_scaled(row, 1.0) for row in rows]
        columns = [_scaled(column, want) for column, want in zip(zip(*rows), wanted)]
        rows = [list(row) for row in zip(*columns)]
    return tuple(tuple(_scaled(row, 1.0)) for row in rows)


def _places(begins: float, part: float, length: int) -> list[int]:
    """In which rows a process takes part.

    Args:
        begins: where it begins, from 0 to below 1, so that slow processes take turns.
        part: its speed, for that of the fastest process.
        length: the number of rows.
    """
    if part >= _NEARLY or length == 1:
        return list(range(length))
    later = length - 1
    turns = min(later, max(1, round(length * part)))
    return [0, *(1 + int((turn + begins) * later / turns) for turn in range(turns))]


def _scaled(values: Sequence[float], total: float) -> list[float]:
    factor = total / math.fsum(values)
    return [value * factor for value in values]
