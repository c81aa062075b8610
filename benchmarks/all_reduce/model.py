"""The time that an all-reduce should take: the α–β model of a link.

A message of m bytes takes α + β·m seconds (Hockney, "The communication challenge for MPP", 1994).
The messages of a round wait at the same time and share the link of their rank, so a round takes α
+ β·m for the m bytes of its busiest rank. The model knows neither the time of the additions nor
that the ranks of this benchmark share cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from benchmarks.all_reduce.schedule import Schedule

# In bytes: what is as good as empty, and messages that are long enough for the rate of a limited
# link. The limiter lets the first 256 kB through at once, so the rate is taken from the slope.
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


def seconds(schedule: Schedule, size: float, link: Link) -> float:
    """The time of an all-reduce of `size` bytes."""
    return sum(link.alpha + link.beta * size * share for share in schedule.busiest())
