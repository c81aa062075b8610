"""The engine for several processes that TensorFlow's collective operations connect."""

from __future__ import annotations

import functools
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
from tfdist.strategies.multi_worker.doubling import most_bytes, sum_by_doubling

# To gather up to so many bytes is faster than a ring, on links from 100 Mbit/s on, for 2 to 8
# replicas.
SMALL_BYTES = 8 * 1024
# Between two replicas a gather sends no more bytes than a ring, in one round instead of two. From
# about so many bytes on it is slower where the link is fast.
PAIR_BYTES = 160 * 1024
# What TensorFlow's gather can carry.
_GATHERED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# Sums a tensor of the replica with this number.
_Way = Callable[[tf.distribute.Strategy, int, tf.Tensor], tf.Tensor]


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
        few_rounds: whether small tensors, on CPUs, are summed in fewer rounds than a ring of N
            replicas has, which are 2(N - 1), and with more bytes. The smallest are gathered in
            N - 1 rounds, and summed by each replica; others, between many replicas, are summed by
            recursive doubling (benchmarks/small_sums.py).
    """

    def __init__(
        self, processes: Processes, largest_message: int, on_cpus: bool, few_rounds: bool = False
    ):
        super().__init__(processes, largest_message)
        self.runs_beside_steps = on_cpus and processes.size > 1
        self._few_rounds = few_rounds and on_cpus

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums; of half precision, with more than two replicas, in float32.

        TensorFlow's gather crashes if no replica has rows, so one without rows sends a row of
        zeros.
        """
        if self.replicas == 1:
            return list(values)
        ways = {place: self._way_of_small(value) for place, value in enumerate(values)}
        small = {p: self._sum_of_small(way, values[p]) for p, way in ways.items() if way}
        others = [
            _with_a_row(value) if isinstance(value, tf.IndexedSlices) else value
            for place, value in enumerate(values)
            if place not in small
        ]
        sums = iter(with_sums_of_halves(self, others, super().all_reduce))
        return [small[p] if p in small else next(sums) for p in range(len(values))]

    def _way_of_small(self, value: Value) -> _Way | None:
        """How a small tensor is summed; None for others, which a ring sums."""
        if isinstance(value, tf.IndexedSlices):
            return None
        if value.shape.num_elements() == 0:
            return _sum_of_nothing
        if not self._few_rounds:
            return None
        if value.dtype not in _GATHERED or not value.shape.is_fully_defined() or self._blocks():
            return None
        elements = value.shape.num_elements()
        # A ring of more replicas in which some have no part of the sum takes fewer rounds.
        if self.replicas > 2 and elements < self.replicas:
            return None
        size = elements * value.dtype.size
        if size <= (PAIR_BYTES if self.replicas == 2 else SMALL_BYTES):
            return _sum_of_gathered
        # Doubling would round half precision in each round.
        doubles = value.dtype != tf.float16 and self.replicas == self.processes.size
        return sum_by_doubling if doubles and size <= most_bytes(self.replicas) else None

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

    def _sum_of_small(self, way: _Way, value: tf.Tensor) -> tf.Tensor:
        """The sum, in the same order on all replicas; its gradient is the gradients' sum."""

        @tf.custom_gradient
        def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            check_unconditional()
            total = way(tf.distribute.get_strategy(), static_id(), value)
            return total, functools.partial(self._sum_of_small, way)

        return summed(tf.convert_to_tensor(value))

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


def _sum_of_nothing(
    strategy: tf.distribute.Strategy, replica_id: int, value: tf.Tensor
) -> tf.Tensor:
    """A tensor without elements, with which TensorFlow's operations crash the process."""
    return tf.identity(value)


def _sum_of_gathered(
    strategy: tf.distribute.Strategy, replica_id: int, value: tf.Tensor
) -> tf.Tensor:
    rows = compat.gather(strategy, replica_id, value[None])
    return sum_of_rows(tf.ensure_shape(rows, [None, *value.shape]))
