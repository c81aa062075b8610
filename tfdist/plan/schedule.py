"""Who sends what to whom, round by round: the plan of an all-reduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from tfdist.plan.alpha_beta import Cost


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One message.

    Attributes:
        source: the rank that sends.
        target: the rank that receives.
        start: the first part of the vector that is sent.
        stop: the part after the last one.
        adds: whether the target adds the parts to what it has; otherwise they replace that.
    """

    source: int
    target: int
    start: int
    stop: int
    adds: bool


@dataclasses.dataclass(frozen=True)
class Schedule:
    """An all-reduce over a number of ranks.

    The messages of a round travel at the same time, and carry what their source had before the
    round. What a target adds in one round, it adds in the order of the ranks, itself included, so
    that several ranks that sum the same part get the same bits.

    Attributes:
        ranks: the number of ranks.
        parts: into how many parts, as even as possible, the vector is cut.
        rounds: the messages of each round.
    """

    ranks: int
    parts: int
    rounds: tuple[tuple[Transfer, ...], ...]

    def messages(self) -> int:
        """The most messages that one rank sends."""
        return max(
            sum(transfer.source == rank for round_ in self.rounds for transfer in round_)
            for rank in range(self.ranks)
        )

    def carried(self) -> float:
        """The most that the link of one rank carries in one direction, in vectors."""
        every = [transfer for round_ in self.rounds for transfer in round_]
        return max(*self._shares(every, "source"), *self._shares(every, "target"))

    def busiest(self) -> list[float]:
        """For each round the most that one rank sends or receives, in vectors.

        A link carries both directions at the same time.
        """
        return [
            max(*self._shares(round_, "source"), *self._shares(round_, "target"))
            for round_ in self.rounds
        ]

    def cost(self) -> Cost:
        """What the α–β model needs to know."""
        return Cost(len(self.rounds), sum(self.busiest()), self.carried())

    def received_at_once(self) -> float:
        """The most that one rank receives in a round, in vectors: memory, beside its own."""
        return max(share for round_ in self.rounds for share in self._shares(round_, "target"))

    def _shares(self, transfers: Iterable[Transfer], end: str) -> list[float]:
        shares = [0.0] * self.ranks
        for transfer in transfers:
            shares[getattr(transfer, end)] += (transfer.stop - transfer.start) / self.parts
        return shares


def part_lengths(length: int, parts: int) -> list[int]:
    """The lengths of the parts of a vector, the longer parts first; some may be 0."""
    return [length // parts + (number < length % parts) for number in range(parts)]


def schedule(ranks: int, parts: int, rounds: Iterable[Sequence[Transfer]]) -> Schedule:
    """A schedule of these rounds."""
    return Schedule(ranks, parts, tuple(map(tuple, rounds)))
