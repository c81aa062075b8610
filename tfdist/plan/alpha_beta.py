"""The time that an all-reduce should take: the α–β model of a link.

A message of m bytes takes α + β·m seconds (Hockney, "The communication challenge for MPP: Intel
Paragon and Meiko CS-2", Parallel Computing 20(3), 1994). A link carries both directions at the same
time. The messages of a round wait at the same time and share the link of their rank, so a round
takes α + β·m for the m bytes of its busiest rank.

A long vector travels in pieces, and the rounds of several pieces overlap. The first piece takes
the time of its rounds. The rest follows at the pace of the link that carries the most.

The model knows neither the time of additions nor that of processors.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Link:
    """What messages between two ranks cost.

    Attributes:
        alpha: seconds of an empty message.
        beta: seconds of each further byte.
    """

    alpha: float
    beta: float


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the α–β model needs to know of an all-reduce.

    Attributes:
        rounds: the number of rounds, which follow each other.
        busiest: for each round the most that one rank sends or receives, in vectors; their sum.
        carried: the most that the link of one rank carries in one direction, in vectors.
    """

    rounds: int
    busiest: float
    carried: float


def seconds(cost: Cost, size: float, link: Link, piece: float | None = None) -> float:
    """The least time of an all-reduce.

    Args:
        cost: of each piece.
        size: of the vector, in bytes.
        link: of all ranks.
        piece: the largest piece, in bytes; None if the vector travels as one.
    """
    first = size if piece is None else min(size, piece)
    rounds = cost.rounds * link.alpha + link.beta * first * cost.busiest
    return rounds + link.beta * (size - first) * cost.carried
