"""The engine for replicas in one process, made of TensorFlow's replica context."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import tensorflow as tf

from tfdist.engines.contract import Engine, Value
from tfdist.engines.processes import OneProcess, Processes
from tfdist.engines.words import from_words, to_words

# With several processes TensorFlow by default packs all tensors into one, which takes longer
# (benchmarks/exchange.py). Gradients are packed already when they arrive here.
_ONE_BY_ONE = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1)


def static_id() -> int:
    """The number of the running replica among all replicas; in replica context."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def check_unconditional() -> None:
    """Raises RuntimeError in a condition, a loop or a function that a replica made.

    There each rank decides for itself, and ranks that decide differently would wait forever.
    TensorFlow refuses it wherever replicas meet. A condition around all replicas is allowed.
    """
    context = tf.distribute.get_replica_context()
    if context is not None:
        context.merge_call(_meet)


@tf.autograph.experimental.do_not_convert
def _meet(strategy: tf.distribute.Strategy) -> None:
    """Nothing is to be done where the replicas of this process meet."""


class ReplicaContextEngine(Engine):
    """Carries tensors between the replicas of the running strategy, whichever it is.

    Args:
        processes: the processes of the job; None for this process alone.
        largest_message: as in `Engine`.
    """

    def __init__(self, processes: Processes | None = None, largest_message: int | None = None):
        self.processes = processes or OneProcess()
        self.largest_message = largest_message

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return tf.distribute.get_strategy().num_replicas_in_sync

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums, by the replica context."""
        if not values or self.replicas == 1:
            return list(values)
        # If all replicas hand in the same tensor object, TensorFlow treats it as one value, not as
        # R equal values, and does not sum it. So each replica hands in its own copy.
        own = [tf.nest.map_structure(tf.identity, v, expand_composites=True) for v in values]
        # TensorFlow refuses lists of several dtypes, and under MirroredStrategy those of int32.
        places: dict[Hashable, list[int]] = {}
        for place, value in enumerate(own):
            key = place if value.dtype == tf.int32 else value.dtype
            places.setdefault(key, []).append(place)
        sums: dict[int, Value] = {}
        for some in places.values():
            totals = tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, [own[place] for place in some], options=_ONE_BY_ONE
            )
            sums.update(zip(some, totals))
        return [sums[place] for place in range(len(values))]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all replicas, by the replica context."""
        if self.replicas == 1:
            return tensor
        return tf.distribute.get_replica_context().all_gather(tensor, axis=0)

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of `root`: its bits as integers, summed with zeros, which is exact."""
        if self.replicas == 1:
            return tensor
        words = to_words(tensor)
        own = words if static_id() == root else tf.zeros_like(words)
        return from_words(self.all_reduce([own])[0], tensor)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this replica, read from the other replicas in this process."""

        def transposed(strategy: tf.distribute.Strategy, rows: tf.Tensor) -> list[tf.Tensor]:
            given = strategy.experimental_local_results(rows)
            received = []
            for place, device in enumerate(strategy.extended.worker_devices):
                with tf.device(device):
                    received.append(tf.stack([own[place] for own in given]))
            return received

        if self.replicas == 1:
            return rows
        context = tf.distribute.get_replica_context()
        return context.merge_call(transposed, args=(tf.identity(rows),))[static_id()]

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This replica's part of the sum, added up from the parts that all replicas send to it."""
        if self.replicas == 1:
            return vector
        rows = tf.reshape(vector, [self.replicas, -1])
        return tf.add_n(tf.unstack(self.all_to_all(rows), num=self.replicas))

    def all_gather_parts(self, part: tf.Tensor, in_turn: bool = False) -> tf.Tensor:
        """The parts of all replicas, read from the other replicas in this process."""

        def joined(strategy: tf.distribute.Strategy, part: tf.Tensor) -> list[tf.Tensor]:
            given = strategy.experimental_local_results(part)
            received = []
            for device in strategy.extended.worker_devices:
                with tf.device(device):
                    received.append(tf.concat(given, axis=0))
            return received

        if self.replicas == 1:
            return part
        context = tf.distribute.get_replica_context()
        return context.merge_call(joined, args=(tf.identity(part),))[static_id()]
