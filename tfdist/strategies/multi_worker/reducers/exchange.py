"""The messages of a sum by reducers: who sends which piece to whom, and by which number.

Each worker sends a part of its vector to each reducer, which adds the parts up and sends the sum
back: a vector in each direction of a worker's link, where a ring between N workers sends 2(N-1)/N
of one. Such servers are in Jiang et al., "A Unified Architecture for Accelerating Distributed DNN
Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020), section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import tensorflow as tf

# The bytes that a worker sends to a reducer at once. With larger pieces fewer are summed while
# others are on their way, with smaller ones the messages cost more (benchmarks/reduction_servers).
PIECE_BYTES = 256 * 1024
# How many pieces a process sends to another one at once: one travels while the next one is taken.
AHEAD = 2
# The name of what a reducer holds while it takes the pieces of a sum.
_RECEIVING = "tfdist_receiving"
DTYPES = (tf.float32, tf.float64, tf.float16)


@dataclasses.dataclass(frozen=True)
class Cut:
    """How vectors are cut into pieces, in rounds of one piece for each reducer.

    Attributes:
        elements: the length of the vectors.
        dtype: their dtype, one of `DTYPES`.
        reducers: the number of reducers.
    """

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
        """How many numbers an exchange has: for the counts, and for each round there and back."""
        return 1 + 2 * self.rounds

    def length(self, round_: int, reducer: int) -> int:
        """The elements of a piece; 0 where the vector has ended."""
        start = (round_ * self.reducers + reducer) * self.piece
        return max(0, min(self.piece, self.elements - start))


def _numbers_of(round_: int) -> tuple[int, int]:
    """The numbers of a round's messages to the reducers, and back, from the exchange's first on."""
    return 1 + 2 * round_, 2 + 2 * round_


@dataclasses.dataclass(frozen=True)
class Pair:
    """A worker and a reducer, which TensorFlow takes for a group of two.

    Attributes:
        worker: the rank of the worker.
        reducer: the number of the reducer.
        group: the number of the group.
    """

    worker: int
    reducer: int
    group: int

    def send(self, value: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
        """Sends a tensor to the other one; returns it once it has been taken."""
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveBcastSendV2(
                input=value, group_size=2, group_key=self.group, instance_key=number
            )

    def receive(self, length: int, dtype: tf.DType, number: tf.Tensor | int) -> tf.Tensor:
        """A vector that the other one sends."""
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveBcastRecvV2(
                T=dtype, shape=[length], group_size=2, group_key=self.group, instance_key=number
            )


def of_worker(
    cut: Cut, vector: tf.Tensor, first: tf.Tensor, count: tf.Tensor, pairs: Sequence[Pair]
) -> tf.Tensor:
    """The sum over the workers; what a worker does.

    Args:
        cut: of the vectors.
        vector: what this worker adds.
        first: the number of the exchange's first message.
        count: int32 scalar, which sum of all this is. A reducer gets no piece before it has the
            count: a piece of another sum would look the same.
        pairs: this worker and each reducer.
    """
    used = [pair for pair in pairs if cut.length(0, pair.reducer)]
    counts = {pair: pair.send(tf.reshape(count, [1]), first) for pair in used}
    taken: dict[Pair, list[list[tf.Tensor]]] = {pair: [] for pair in used}
    sums, start = [], 0
    for round_ in range(cut.rounds):
        up, down = _numbers_of(round_)
        for pair in used:
            if not (length := cut.length(round_, pair.reducer)):
                continue
            # Only for this reducer: another one may take the pieces of another sum first.
            with tf.control_dependencies(_before(taken[pair], round_) or [counts[pair]]):
                sent = pair.send(tf.identity(vector[start : start + length]), first + up)
                sums.append(pair.receive(length, cut.dtype, first + down))
            taken[pair].append([sent])
            start += length
    with tf.control_dependencies(_all(_all(taken.values()))):
        return tf.concat(sums, axis=0)


def of_reducer(cut: Cut, first: tf.Tensor, pairs: Sequence[Pair]) -> tf.Tensor:
    """Sums once; what a reducer does.

    The sum is in the order of the workers, so that it always has the same bits. Half precision is
    added up in float32, and rounded once.

    Each receive that waits costs a thread. So at first only one waits: for the first worker's
    count. Then those of a few rounds do. A reducer takes the pieces of one sum after the other, and
    those of the next one while the last ones of a sum travel back: the links of the workers are in
    use in both directions all the time.

    Args:
        cut: of the vectors.
        first: the number of the exchange's first message.
        pairs: each worker and this reducer.

    Returns:
        Something that is there once all have got the sum.

    Raises:
        tf.errors.InvalidArgumentError: when the workers are at different sums.
    """
    wide = tf.float32 if cut.dtype == tf.float16 else cut.dtype
    counts = [pairs[0].receive(1, tf.int32, first)]
    with tf.control_dependencies(counts):
        counts += [pair.receive(1, tf.int32, first) for pair in pairs[1:]]
    with tf.control_dependencies([_check(counts)]):
        turn = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name=_RECEIVING, container=""))
    got: list[list[tf.Tensor]] = []
    taken: list[list[tf.Tensor]] = []
    for round_ in range(cut.rounds):
        length = cut.length(round_, pairs[0].reducer)
        if not length:
            break
        up, down = _numbers_of(round_)
        with tf.control_dependencies(_before(got, round_) or [turn]):
            pieces = [pair.receive(length, cut.dtype, first + up) for pair in pairs]
        got.append(pieces)
        with tf.control_dependencies(_before(taken, round_)):
            total = tf.zeros([length], wide)
            for piece in pieces:
                total += tf.cast(piece, wide)
            total = tf.cast(total, cut.dtype)
        taken.append([pair.send(total, first + down) for pair in pairs])
    with tf.control_dependencies(got[max(0, len(got) - AHEAD)]):
        released = tf.raw_ops.ConsumeMutexLock(mutex_lock=turn)
    with tf.control_dependencies([released, *_all(taken)]):
        return tf.constant(0)


def _check(counts: Sequence[tf.Tensor]) -> tf.Operation:
    counts = tf.concat(counts, axis=0)
    return tf.debugging.Assert(
        tf.reduce_all(tf.equal(counts, counts[0])),
        ["The workers are at different sums: one has left a step, or traced another one.", counts],
        summarize=64,
    )


def _before(done: Sequence[Sequence[tf.Tensor]], round_: int) -> Sequence[tf.Tensor]:
    """What must be done before a round begins."""
    return done[round_ - AHEAD] if round_ >= AHEAD else []


def _all(done: Iterable[Iterable[tf.Tensor]]) -> list[tf.Tensor]:
    return [one for some in done for one in some]
