"""Stage 2: average the gradients of k micro-batches on each replica before one exchange.

The accumulators are replica-local; nothing travels until the k-th micro-batch. They carry over from
one epoch to the next, as with Keras' own `gradient_accumulation_steps`: when the steps of an epoch
are no multiple of k, the remainder is completed by the first batches of the next epoch.
"""

from __future__ import annotations

import zlib

import keras
import tensorflow as tf

from tfdist._compat import SaveableState
from tfdist.stages.exchange import Bucket, pack, unpack


class GradientAccumulator(SaveableState, tf.Module):
    """Sums of gradients since the last update, one flat variable per bucket and replica.

    It is saved per variable, so that a file can be read with another bucket size, and as the sum
    over the replicas, so that it can be read with another number of replicas. (A
    `tf.train.Checkpoint` writes the flat variables: there the bucket size must stay the same.)

    Args:
        steps: k, the number of micro-batches per update.
        buckets: the layout of the gradients of all trainable variables.
        variables: number of trainable variables.
    """

    def __init__(self, steps: int, buckets: list[Bucket], variables: int):
        super().__init__(name="accumulated_gradients")
        self.steps = steps
        self.buckets = buckets
        self._variables = variables
        self._strategy = tf.distribute.get_strategy()
        self._spread_state = 0
        self.micro_step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="micro_step",
        )
        self.sums = [
            tf.Variable(
                tf.zeros([sum(bucket.sizes)], bucket.dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name=f"accumulated_gradients_{index}",
            )
            for index, bucket in enumerate(buckets)
        ]

    def add(self, packed: list[tf.Tensor], finite: tf.Tensor | None) -> None:
        """Adds one micro-batch's packed gradients, unless they overflowed; in replica context.

        Args:
            packed: one flat tensor per bucket.
            finite: a bool scalar, or None for True.
        """
        for total, flat in zip(self.sums, packed):
            total.assign_add(flat if finite is None else tf.where(finite, flat, 0))

    def take(self, micro_batches: tf.Tensor) -> list[tf.Tensor]:
        """The replica's packed mean over the micro-batches; clears the sums; in replica context.

        Args:
            micro_batches: an int64 scalar, their number.
        """
        means = []
        for total in self.sums:
            means.append(total.read_value() / tf.cast(micro_batches, total.dtype))
            with tf.control_dependencies([means[-1]]):
                total.assign(tf.zeros_like(total))
        return means

    def count(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Counts a micro-batch; in cross-replica context.

        Returns:
            A bool scalar, whether an update is due, and an int64 scalar, the number of
            micro-batches since the last one. When it is due that is k, or more after a state was
            read that had been saved with a larger k.
        """
        micro_batches = tf.convert_to_tensor(self.micro_step) + 1
        due = tf.greater_equal(micro_batches, self.steps)
        self.micro_step.assign(tf.where(due, tf.zeros_like(micro_batches), micro_batches))
        return due, micro_batches

    def spread(self) -> None:
        """Gives every replica an equal part of the sums, so that one process can save them alone.

        Called by all processes, between steps.
        """
        if not self._is_spread():
            for total in self.sums:
                self._set(total, tf.convert_to_tensor(total))
            self.note_spread()

    def note_spread(self) -> None:
        """Notes that every replica has an equal part of the sums now."""
        self._spread_state = self._local_state()

    def _is_spread(self) -> bool:
        return int(self.micro_step.numpy()) == 0 or self._local_state() == self._spread_state

    def _local_state(self) -> int:
        """A checksum of what this process has."""
        state = int(self.micro_step.numpy())
        for total in self.sums:
            for local in self._strategy.experimental_local_results(total):
                state = zlib.crc32(local.numpy().tobytes(), state)
        return state

    def _get(self, total: tf.Variable) -> tf.Tensor:
        """The sum over the replicas."""
        if not self._is_spread():
            return tf.convert_to_tensor(total)
        local = self._strategy.experimental_local_results(total)[0]
        return local * tf.cast(self._strategy.num_replicas_in_sync, total.dtype)

    def _set(self, total: tf.Variable, value: tf.Tensor) -> None:
        """Sets the sum over the replicas, part by part.

        TensorFlow's assignment to all asks the other processes for their sums.
        """
        part = value / tf.cast(self._strategy.num_replicas_in_sync, value.dtype)
        for local in self._strategy.experimental_local_results(total):
            local.assign(part)

    def save_own_variables(self, store: dict) -> None:
        """Writes the state where Keras' saving asks for it."""
        store["micro_step"] = self.micro_step.numpy()
        for bucket, total in zip(self.buckets, self.sums):
            for index, part in zip(bucket.indices, unpack(bucket, self._get(total))):
                store[str(index)] = part.numpy()

    def load_own_variables(self, store: dict) -> None:
        """Reads the state; a file without any (no accumulation when it was saved) starts at 0."""
        if not len(store.keys()):
            return
        if len(store.keys()) != self._variables + 1:
            raise ValueError(
                "The saved accumulated gradients belong to another model. Received: "
                f"{len(store.keys()) - 1} gradients for {self._variables} trainable variables."
            )
        self.micro_step.assign(int(store["micro_step"][()]))
        parts = [keras.ops.convert_to_tensor(store[str(i)][()]) for i in range(self._variables)]
        for bucket, total in zip(self.buckets, self.sums):
            self._set(total, pack(bucket, parts))
        self.note_spread()
