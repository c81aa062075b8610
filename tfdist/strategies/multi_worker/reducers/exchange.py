"""The messages of a sum by reducers: who sends which piece to whom, and by which number.

Each worker sends a part of its vector to each reducer, which adds the parts up and sends the sum
back: a vector in each direction of a worker's link, where a ring between N workers sends 2(N-1)/N
of one. Such servers are in Jiang et al., "A Unified Architecture for Accelerating Distributed DNN
Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020), section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

# Above the numbers of all other groups: those of `pairs.py` begin at 2**30 + 2**29.
_FIRST_GROUP = 2**30 + 2**29 + 2**28
_FIRST_NEWS = 2**30

# The bytes that a worker sends to a reducer at once. With larger pieces fewer are summed while
# others are on their way, with smaller ones the messages cost more (benchmarks/reduction_servers).
PIECE_BYTES = 256 * 1024
# How many pieces a process sends to another one at once: one travels while the next one is taken.
AHEAD = 2
DTYPES = (tf.float32, tf.float64, tf.float16)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A sum that is computed again and again.

    Attributes:
        first: the number of its first message; the same in all processes.
        elements: the length of the vectors.
        dtype: their dtype, one of `DTYPES`.
        reducers: the number of reducers.
    """

    first: int
    elements: int
    dtype: tf.DType
    reducers: int

    @property
    def piece(self) -> int:
        """The elements that one message carries, except for the last ones."""
        even = -(-self.elements // self.reducers)
        return max(1, min(even, PIECE_BYTES // self.dtype.size))

    @property
    def rounds(self) -> int:
        """How often each reducer gets a piece."""
        return -(-self.elements // (self.piece * self.reducers))

    @property
    def numbers(self) -> int:
        """How many numbers its messages have."""
        return 2 * self.rounds

    def length(self, round_: int, reducer: int) -> int:
        """The elements of a piece; 0 where the vector has ended."""
        start = (round_ * self.reducers + reducer) * self.piece
        return max(0, min(self.piece, self.elements - start))

    def up(self, round_: int) -> int:
        """The number of the messages to the reducers."""
        return self.first + 2 * round_

    def down(self, round_: int) -> int:
        """The number of the messages to the workers."""
        return self.first + 2 * round_ + 1

    def as_numbers(self) -> list[int]:
        """What `of_numbers` needs."""
        return [self.first, self.elements, DTYPES.index(self.dtype)]

    @classmethod
    def of_numbers(cls, numbers: Sequence[int], reducers: int) -> Exchange:
        """Inverse of `as_numbers`."""
        first, elements, dtype = map(int, numbers)
        return cls(first, elements, DTYPES[dtype], reducers)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A worker and a reducer, which TensorFlow takes for a group of two.

    Attributes:
        worker: the rank of the worker.
        reducer: the number of the reducer.
        reducers: the number of reducers.
    """

    worker: int
    reducer: int
    reducers: int

    def send(self, value: tf.Tensor, number: int) -> tf.Tensor:
        """Sends a tensor to the other one; returns it once it has been taken."""
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveBcastSendV2(input=value, **self._place(number))

    def receive(self, length: int, dtype: tf.DType, number: int) -> tf.Tensor:
        """A vector that the other one sends."""
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveBcastRecvV2(T=dtype, shape=[length], **self._place(number))

    def _place(self, number: int) -> dict[str, int]:
        group = _FIRST_GROUP + self.worker * self.reducers + self.reducer
        return {"group_size": 2, "group_key": group, "instance_key": number}

    def tell(self, exchange: Exchange, place: int) -> None:
        """Tells the reducer of an exchange; outside of a `tf.function`."""
        self.send(tf.constant(exchange.as_numbers(), tf.int64), _FIRST_NEWS + place)

    def told(self, place: int) -> Exchange:
        """Waits for the exchange with this place among all that are told."""
        numbers = self.receive(3, tf.int64, _FIRST_NEWS + place)
        return Exchange.of_numbers(numbers.numpy(), self.reducers)


def of_worker(exchange: Exchange, vector: tf.Tensor, pairs: Sequence[Pair]) -> tf.Tensor:
    """The sum over the workers; what a worker does.

    Args:
        exchange: which.
        vector: what this worker adds.
        pairs: this worker and each reducer.
    """
    taken: list[list[tf.Tensor]] = []
    sums, start = [], 0
    for round_ in range(exchange.rounds):
        sent = []
        with tf.control_dependencies(taken[round_ - AHEAD] if round_ >= AHEAD else []):
            for pair in pairs:
                length = exchange.length(round_, pair.reducer)
                if length:
                    piece = tf.identity(vector[start : start + length])
                    sent.append(pair.send(piece, exchange.up(round_)))
                    sums.append(pair.receive(length, exchange.dtype, exchange.down(round_)))
                    start += length
        taken.append(sent)
    with tf.control_dependencies([one for some in taken for one in some]):
        return tf.concat(sums, axis=0)


def of_reducer(exchange: Exchange, pairs: Sequence[Pair]) -> tf.Tensor:
    """Sums once; what a reducer does, in a `tf.function`.

    The sum is in the order of the workers, so that it always has the same bits. Half precision is
    added up in float32, and rounded once.

    Args:
        exchange: which.
        pairs: each worker and this reducer.

    Returns:
        Something that is there once all have got the sum.
    """
    taken: list[list[tf.Tensor]] = []
    wide = tf.float32 if exchange.dtype == tf.float16 else exchange.dtype
    for round_ in range(exchange.rounds):
        length = exchange.length(round_, pairs[0].reducer)
        if not length:
            break
        total = tf.zeros([length], wide)
        for pair in pairs:
            piece = pair.receive(length, exchange.dtype, exchange.up(round_))
            total = total + tf.cast(piece, wide)
        with tf.control_dependencies(taken[round_ - AHEAD] if round_ >= AHEAD else []):
            summed = tf.cast(tf.identity(total), exchange.dtype)
            taken.append([pair.send(summed, exchange.down(round_)) for pair in pairs])
    with tf.control_dependencies([one for some in taken for one in some]):
        return tf.constant(0)
