"""The time that an all-reduce should take: the α–β model of a link.

A message of m bytes takes α + β·m seconds (Hockney, "The communication challenge for MPP: Intel
Paragon and Meiko CS-2", Parallel Computing 20(3), 1994). A link carries both directions at the same
time. The messages of a round wait at the same time and share the link of their rank, so a round
takes α + β·m for the m bytes of its busiest rank.

A long vector travels in pieces, and the rounds of several pieces overlap. The first piece takes
the time of its rounds. The rest follows at the pace of the link that carries the most.

The model knows neither the time of additions nor that of processors, which the ranks of this
benchmark share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from benchmarks.all_reduce.schedule import Schedule

# In bytes: what is as good as empty, and messages that are long enough for the rate of a limited
# link. The limiter lets the first bytes through at once, so the rate is taken from the slope.
EMPTY, LONG = 1_000, (1_000_000, 2_000_000, 4_000_000)


@dataclasses.dataclass(frozen=True)
class Link:
    """What messages between two ranks cost.

    Attributes:
        alpha: seconds of an empty message.
        beta: seconds of each further byte.
    """

    alpha: float
    beta: float


def fitted(times: Mapping[int, float]) -> Link:
    """The link on which messages took so long.

    Args:
        times: seconds by the bytes of the message, for `EMPTY` and `LONG`.

    Raises:
        RuntimeError: when longer messages did not take longer.
    """
    beta = float(np.polyfit(LONG, [times[size] for size in LONG], 1)[0])
    # Where they took equally long, rounding may leave a slope.
    if beta * LONG[-1] <= 1e-6 * times[LONG[-1]]:
        raise RuntimeError(
            "Longer messages must take longer; check what else runs on this machine. Received: "
            + ", ".join(f"{size} bytes in {1000 * times[size]:.3g} ms" for size in sorted(times))
        )
    return Link(max(times[EMPTY] - EMPTY * beta, 0.0), beta)


def seconds(schedule: Schedule, size: float, link: Link, piece: float | None = None) -> float:
    """The least time of an all-reduce.

    Args:
        schedule: of each piece.
        size: of the vector, in bytes.
        link: of all ranks.
        piece: the largest piece, in bytes; None if the vector travels as one.
    """
    first = size if piece is None else min(size, piece)
    rounds = sum(link.alpha + link.beta * first * share for share in schedule.busiest())
    return rounds + link.beta * (size - first) * schedule.carried()
