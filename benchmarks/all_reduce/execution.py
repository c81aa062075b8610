"""All-reduces by a schedule, made of TensorFlow's broadcasts in groups of two ranks."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.compat import OPERATIONS_UNDER_WAY
from tfdist.engines.contract import Engine, Value
from tfdist.plan.schedule import Schedule, Transfer, part_lengths
from tfdist.strategies.multi_worker.engine import CollectivesEngine

# Groups of two are numbered from here on, far from those of TensorFlow's strategies.
_FIRST_GROUP = 2**29


class Messages:
    """Messages from one rank to another.

    All ranks make the same messages in the same order, also those of others: so the two ranks of a
    message give it the same number.

    Args:
        rank: this rank.
        ranks: the number of ranks.
    """

    def __init__(self, rank: int, ranks: int):
        self._rank = rank
        self._ranks = ranks
        self._numbers = itertools.count(1)

    def message(
        self, source: int, target: int, length: int, value: tf.Tensor | None
    ) -> tf.Tensor | None:
        """One message of float32.

        Args:
            source: the rank that sends.
            target: the rank that receives.
            length: the number of elements, at least 1.
            value: what is sent; None in ranks that do not send.

        Returns:
            In the target what arrives; in the source something that is there once the message has
            been taken; None in other ranks.
        """
        number = next(self._numbers)
        if self._rank not in (source, target):
            return None
        low, high = sorted((source, target))
        place = {
            "group_size": 2,
            "group_key": _FIRST_GROUP + low * self._ranks + high,
            "instance_key": number,
        }
        with tf.device("CPU:0"):
            if self._rank == source:
                return tf.raw_ops.CollectiveBcastSendV2(input=value, **place)
            return tf.raw_ops.CollectiveBcastRecvV2(T=tf.float32, shape=[length], **place)


class ScheduledEngine(CollectivesEngine):
    """The engine of `multi_worker`, but with all-reduces of float32 vectors by a schedule.

    Args:
        engine: the engine of the strategy.
        schedule: for as many ranks.
        messages: the same object for all engines of the process.
    """

    def __init__(self, engine: Engine, schedule: Schedule, messages: Messages):
        super().__init__(engine.processes, engine.largest_message, on_cpus=True)
        self._schedule = schedule
        self._messages = messages

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums of vectors; as many are under way as with TensorFlow's own operation."""
        sums: list[tf.Tensor] = []
        for number, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices) or value.dtype != tf.float32:
                raise ValueError(
                    f"Schedules are for vectors of float32. Received: values[{number}]={value}"
                )
            before = sums[number - OPERATIONS_UNDER_WAY :][:1]
            with tf.control_dependencies(before if number >= OPERATIONS_UNDER_WAY else []):
                sums.append(self._sum(tf.identity(value)))
        return sums

    def _sum(self, vector: tf.Tensor) -> tf.Tensor:
        lengths = part_lengths(vector.shape[0], self._schedule.parts)
        parts = tf.split(vector, lengths)
        for transfers in self._schedule.rounds:
            parts = self._after(parts, lengths, transfers)
        return tf.concat(parts, axis=0)

    def _after(
        self, parts: list[tf.Tensor], lengths: list[int], transfers: Sequence[Transfer]
    ) -> list[tf.Tensor]:
        """The parts after a round."""
        rank = self.processes.rank
        made, arrived = [], collections.defaultdict(list)
        for transfer in transfers:
            taken = slice(transfer.start, transfer.stop)
            length = sum(lengths[taken])
            if not length:
                continue
            own = tf.concat(parts[taken], axis=0) if transfer.source == rank else None
            # In each rank a round begins when the one before has ended. Otherwise TensorFlow would
            # also leave out what a rank sends before all that it has is replaced.
            with tf.control_dependencies(parts):
                message = self._messages.message(transfer.source, transfer.target, length, own)
            if message is None:
                continue
            made.append(message)
            if transfer.target == rank:
                pieces = tf.split(message, lengths[taken])
                for place, piece in enumerate(pieces, start=transfer.start):
                    arrived[place].append((transfer, piece))
        with tf.control_dependencies(made):
            return [
                self._merged(part, arrived[place], _is_summed_twice(transfers, place))
                for place, part in enumerate(parts)
            ]

    def _merged(
        self, own: tf.Tensor, arrived: list[tuple[Transfer, tf.Tensor]], in_order: bool
    ) -> tf.Tensor:
        """What a rank has of a part after a round.

        Args:
            own: what it had before.
            arrived: the messages, and what they have of the part.
            in_order: whether the bits depend on nothing but the order of the ranks.
        """
        replacing = [piece for transfer, piece in arrived if not transfer.adds]
        if replacing:
            return tf.identity(replacing[0])
        pieces = {transfer.source: piece for transfer, piece in arrived}
        pieces[self.processes.rank] = own
        ordered = [pieces[rank] for rank in sorted(pieces)]
        if in_order and len(ordered) > 2:
            # `add_n` begins with any tensor whose memory it may use for the sum. TensorFlow makes
            # it out of single additions, too.
            return tf.reduce_sum(tf.stack(ordered), axis=0)
        return tf.add_n([tf.identity(piece) for piece in ordered])


def _is_summed_twice(transfers: Sequence[Transfer], part: int) -> bool:
    """Whether more than one rank adds to a part in a round."""
    targets = {t.target for t in transfers if t.adds and t.start <= part < t.stop}
    return len(targets) > 1
