"""The time of a step with `sharding`, of which each rank updates its part of the variables.

The parts of sums and the updated parts are half of an all-reduce each. The rows of sparse gradients
travel as without `sharding`, but then whole tables are gathered, which is a half again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.plan.step_time import Carriage, exchanged_alone, synchronous
from tfdist.plan.workload import Message


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What a step with `sharding` exchanges between some ranks.

    Attributes:
        messages: the gradients, in the order in which they are ready.
        carried: how each of them travels, in a whole all-reduce or as rows.
        tables: how whole tables with sparse gradients would travel in all-reduces.
        longer: how many times as long as its bytes need the link is busy with the sums of parts,
            and with the gathering of parts.
    """

    messages: Sequence[Message]
    carried: Sequence[Carriage]
    tables: Sequence[Carriage] = ()
    longer: tuple[float, float] = (1.0, 1.0)

    @property
    def sums(self) -> list[Carriage]:
        """What travels beside the backward pass: the sums of parts, and rows."""
        return [
            way if message.is_rows else _half(way, self.longer[0])
            for message, way in zip(self.messages, self.carried)
        ]

    @property
    def gathered(self) -> list[Carriage]:
        """The parts of all variables that have dense gradients, on their way to all ranks."""
        dense = (way for message, way in zip(self.messages, self.carried) if not message.is_rows)
        return [_half(way, self.longer[1]) for way in dense]

    @property
    def gathered_tables(self) -> list[Carriage]:
        """The parts of the other variables."""
        return [_half(way, self.longer[1]) for way in self.tables]


def sharded(
    parts: tuple[float, float, float], exchange: Exchange, ranks: int, early: float = 1.0
) -> tuple[float, float]:
    """A step in which each rank updates its part of the variables, which are gathered then.

    Args:
        parts: as for `synchronous`.
        exchange: what is exchanged.
        ranks: the number of ranks.
        early: as for `synchronous`.

    Returns:
        The seconds of the step, and the bytes that a rank sends.
    """
    forward, backward, update = parts
    sums, gathered = exchange.sums, [*exchange.gathered, *exchange.gathered_tables]
    seconds = synchronous((forward, backward, update / ranks), exchange.messages, sums, early)
    return seconds + exchanged_alone(gathered), _sent([*sums, *gathered])


def with_weights_in_parts(
    parts: tuple[float, float, float], exchange: Exchange, ranks: int, early: float = 1.0
) -> tuple[float, float]:
    """A step in which each rank keeps its part of the weights; as `sharded`.

    Each weight is gathered for the forward and for the backward pass. A table that is looked up is
    gathered for the forward pass only. The weights travel while the layer before computes, but the
    two are taken to follow each other here. And the weights of the last two layers are gathered
    once, which is not taken off. So this is an upper bound.
    """
    seconds, sent = sharded(parts, exchange, ranks, early)
    again = exchange.gathered
    return seconds + exchanged_alone(again), sent + _sent(again)


def _sent(carried: Sequence[Carriage]) -> float:
    return sum(way.sent for way in carried)


def _half(way: Carriage, longer: float) -> Carriage:
    """Half of an all-reduce whose bytes take so many times as long."""
    further = (longer - 1) * way.summed
    return dataclasses.replace(
        way,
        busy=(way.busy + further) / 2,
        latency=way.latency / 2,
        sent=way.sent / 2,
        cores=way.cores / 2,
    )
