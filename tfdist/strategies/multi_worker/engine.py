"""The engine for several processes that TensorFlow's collective operations connect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Value
from tfdist.engines.halves import sum_of_rows, with_sums_of_halves
from tfdist.engines.processes import Processes
from tfdist.engines.replica_context import (
    ReplicaContextEngine,
    check_unconditional,
    static_id,
)

# To gather so few bytes is faster than a ring on links from 100 Mbit/s on, for 2 to 8 replicas.
SMALL_BYTES = 8 * 1024
# Up to so many bytes, fewer rounds than a ring's are faster for 3 to 8 replicas.
MEDIUM_BYTES = 128 * 1024
_IN_PARTS = (tf.float32, tf.float64)
# What TensorFlow's gather can carry.
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class CollectivesEngine(ReplicaContextEngine):
    """TensorFlow's collective operations over gRPC or NCCL.

    TensorFlow also has `CollectiveReduceScatterV2`, but this operation fails on CPUs (TensorFlow
    2.21). So each replica gets its parts from the others and adds them up.

    Args:
        processes: the processes of the job.
        largest_message: as in `Engine`.
        on_cpus: whether all replicas are on CPUs. There operations of several functions may be
            under way at the same time, whichever is first. NCCL on GPUs wants one order on all
            ranks.
        gathered: tensors of at most so many bytes are gathered, and summed by each replica. A ring
            of N replicas gathers in N - 1 rounds, and sums in 2(N - 1). So small sums take half of
            the time, and more bytes (benchmarks/small_sums.py).
        in_parts: longer tensors of at most so many bytes travel in parts: each replica sums one
            part, which the others gather. So N replicas need N rounds, and no more bytes than in a
            ring.
    """

    def __init__(
        self,
        processes: Processes,
        largest_message: int,
        on_cpus: bool,
        gathered: int = 0,
        in_parts: int = 0,
    ):
        super().__init__(processes, largest_message)
        self.runs_beside_steps = on_cpus and processes.size > 1
        self._gathered = gathered
        self._in_parts = in_parts

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums; of half precision, with more than two replicas, in float32.

        TensorFlow's gather crashes if no replica has rows, so one without rows sends a row of
        zeros.
        """
        if self.replicas == 1:
            return list(values)
        short: dict[int, Value] = {}
        for place, value in enumerate(values):
            if self._is_small(value):
                short[place] = self._summed(value, self._sum_of_gathered)
            elif self._is_medium(value):
                short[place] = self._summed(value, self._sum_in_parts)
        others = [
            _with_a_row(value) if isinstance(value, tf.IndexedSlices) else value
            for place, value in enumerate(values)
            if place not in short
        ]
        sums = iter(with_sums_of_halves(self, others, super().all_reduce))
        return [short[p] if p in short else next(sums) for p in range(len(values))]

    def _is_small(self, value: Value) -> bool:
        size = self._size(value, _GATHERED)
        # A ring in which some replicas have no part of the sum takes fewer rounds.
        return size is not None and size[0] >= self.replicas and size[1] <= self._gathered

    def _is_medium(self, value: Value) -> bool:
        size = self._size(value, _IN_PARTS)
        # Between two replicas a ring has two rounds, too.
        return self.replicas > 2 and size is not None and size[1] <= self._in_parts

    def _size(self, value: Value, dtypes: Sequence[tf.DType]) -> tuple[int, int] | None:
        """The elements and bytes of a dense tensor; None for others, and where replicas wait."""
        if isinstance(value, tf.IndexedSlices) or not value.shape.is_fully_defined():
            return None
        if value.dtype not in dtypes or self._blocks():
            return None
        elements = value.shape.num_elements()
        return elements, elements * value.dtype.size

    @staticmethod
    def _blocks() -> bool:
        """Whether an operation of one replica would run before the next replica begins its own."""
        devices = tf.distribute.get_strategy().extended.worker_devices
        return tf.executing_eagerly() and len(devices) > 1

    def _check_flows(self) -> None:
        """Raises ValueError where replicas would wait for each other without end."""
        if self._blocks():
            raise ValueError(
                "With several devices per process, parts of tensors are exchanged in a "
                "`tf.function` only. Leave `run_eagerly` out, or start one process per device. "
                "Received: an eager step of several devices"
            )

    def _summed(self, value: tf.Tensor, sum_of: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """The sum, in the same order on all replicas; its gradient is the gradients' sum."""

        @tf.custom_gradient
        def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            check_unconditional()
            return sum_of(value), lambda of_sum: self._summed(of_sum, sum_of)

        return summed(tf.convert_to_tensor(value))

    @staticmethod
    def _sum_of_gathered(value: tf.Tensor) -> tf.Tensor:
        rows = compat.gather(tf.distribute.get_strategy(), static_id(), value[None])
        return sum_of_rows(tf.ensure_shape(rows, [None, *value.shape]))

    def _sum_in_parts(self, value: tf.Tensor) -> tf.Tensor:
        vector = tf.reshape(value, [-1])
        length = vector.shape[0]
        own = self.reduce_scatter(tf.pad(vector, [[0, -length % self.replicas]]))
        return tf.reshape(self.all_gather_parts(own)[:length], value.shape)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this replica, in one operation."""
        if self.replicas == 1:
            return rows
        strategy = tf.distribute.get_strategy()
        return tf.ensure_shape(compat.all_to_all(strategy, static_id(), rows), rows.shape)

    def all_gather_parts(self, part: tf.Tensor, in_turn: bool = False) -> tf.Tensor:
        """The parts of all replicas, in one operation."""
        if self.replicas == 1:
            return part
        self._check_flows()
        if not in_turn:
            check_unconditional()
        gathered = compat.gather(tf.distribute.get_strategy(), static_id(), part)
        return tf.ensure_shape(gathered, [self.replicas * part.shape[0]])

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This replica's part of the sum. Half precision is summed in float32."""
        if self.replicas == 1:
            return vector
        self._check_flows()
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))


def _with_a_row(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """The rows; a row of zeros, which adds nothing, if there are none."""
    missing = tf.cast(tf.equal(tf.size(rows.indices), 0), tf.int32)
    values = tf.pad(rows.values, [[0, missing], *[[0, 0]] * (rows.values.shape.rank - 1)])
    return tf.IndexedSlices(values, tf.pad(rows.indices, [[0, missing]]), rows.dense_shape)
