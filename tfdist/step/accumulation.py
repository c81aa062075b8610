"""Stage 2: average the gradients of k micro-batches on each replica before one exchange.

The accumulators are local to each replica; nothing travels until the k-th micro-batch. Accumulators
carry over from one epoch to the next, as with Keras' own `gradient_accumulation_steps`. So if the
steps of an epoch are no multiple of k, the next epoch's first batches complete the remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.step.exchange import Bucket
from tfdist.step.replica_rows import NOTHING, PER_REPLICA, SUM, Entry, places, total_of
from tfdist.step.replica_state import ReplicaState
from tfdist.structures import Structure


class GradientAccumulator(ReplicaState):
    """Sums of gradients since the last update, one flat variable per bucket and replica.

    The state is saved per variable, so that a file can be read with another bucket size. With
    compression each replica's sums are saved, because the replica's compressor will see these sums.
    Without compression only the sum over the replicas matters to the update, and is saved. (A
    `tf.train.Checkpoint` writes the flat variables, summed: there the bucket size must stay the
    same.)

    Args:
        steps: k, the number of micro-batches per update.
        buckets: the layout of the gradients of all trainable variables.
        variables: number of trainable variables.
        iterations: returns the optimizer's number of updates.
        compressed: whether gradients are compressed.
        apart: returns whether replicas have begun to train apart; None if they never do. From then
            on gradients are not weighted by the replicas' shares, so what waits for an update is of
            no use to synchronous training.
        together: whether there are synchronous updates, perhaps before those.
    """

    _takes_rows = True  # of a file that has rows of as many replicas

    def __init__(
        self,
        steps: int,
        buckets: list[Bucket],
        variables: int,
        iterations: Callable[[], int],
        compressed: bool,
        apart: Callable[[], bool] | None = None,
        together: bool = True,
    ):
        super().__init__(name="accumulated_gradients")
        self.steps = steps
        self.buckets = buckets
        self._variables = variables
        self._iterations = iterations
        self._is_seen = compressed or apart is not None
        self._apart = apart
        self._together = together
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
        self._groups: set[frozenset[int]] = set()

    def note_trained(self, places: Sequence[int]) -> None:
        """Warns if steps train different variables: an update clears what all of them gathered.

        Args:
            places: the index of each variable that this step trains.
        """
        group = frozenset(places)
        if group not in self._groups and len(self._groups) == 1:
            tf.get_logger().warning(
                "tfdist: with accumulation_steps=%d, steps train different variables with one "
                "optimizer. As in Keras on one device, they are counted together: each %d. step "
                "updates the variables that it trains, and clears what the others have gathered "
                "for theirs. Use an optimizer for each group of variables.",
                self.steps,
                self.steps,
            )
        self._groups.add(group)

    def add(self, packed: list[tf.Tensor], finite: tf.Tensor | None) -> None:
        """Adds one micro-batch's packed gradients, unless they overflowed; in replica context.

        Args:
            packed: one flat tensor per bucket.
            finite: a bool scalar, or None for True.
        """
        for total, flat in zip(self.sums, packed):
            total.assign_add(flat if finite is None else tf.where(finite, flat, 0))

    def take(self, micro_batches: tf.Tensor) -> list[tf.Tensor]:
        """Returns the replica's packed mean and clears the sums; in replica context.

        Args:
            micro_batches: an int64 scalar, the number of micro-batches in the sums.
        """
        means = []
        # False, but TensorFlow does not know that: it would keep known zeros in memory for good.
        is_negative = tf.less(micro_batches, 0)
        for total in self.sums:
            means.append(total.read_value() / tf.cast(micro_batches, total.dtype))
            with tf.control_dependencies([means[-1]]):
                total.assign(tf.fill(total.shape, tf.cast(is_negative, total.dtype)))
        return means

    def count(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Counts a micro-batch; in cross-replica context.

        Returns:
            A bool scalar, whether an update is due, and an int64 scalar, the number of
            micro-batches since the last update. When an update is due, this number is k. It can be
            larger after reading a state that was saved with a larger k.
        """
        micro_batches = tf.convert_to_tensor(self.micro_step) + 1
        due = tf.greater_equal(micro_batches, self.steps)
        self.micro_step.assign(tf.where(due, tf.zeros_like(micro_batches), micro_batches))
        return due, micro_batches

    # --- what is saved ------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """The sums, by bucket."""
        return [
            Entry(total, places(bucket, (sum(bucket.sizes),)))
            for bucket, total in zip(self.buckets, self.sums)
        ]

    @property
    def counters(self) -> list[tf.Variable]:
        """The number of micro-batches."""
        return [self.micro_step]

    def has_rows(self) -> bool:
        """Whether gradients wait for an update; the same in all processes."""
        return int(self.micro_step.numpy()) != 0

    def saved_as(self) -> str:
        """Per replica if each replica's sums will be seen, else as their total."""
        return PER_REPLICA if self._is_seen and not self._processes.may_change else SUM

    def position(self) -> tuple[int, int]:
        """The number of updates, and the number of micro-batches since the last update."""
        return self._iterations(), int(self.micro_step.numpy())

    def start_anew(self) -> None:
        """Forgets what was accumulated."""
        self.micro_step.assign(0)
        for total in self.sums:
            for local in self._strategy.experimental_local_results(total):
                local.assign(tf.zeros_like(local))

    def save_own_variables(self, store: dict) -> None:
        """Writes the state where Keras' saving asks for it."""
        store["micro_step"] = self.micro_step.numpy()
        if self._apart is not None and self._apart() and self.has_rows():
            store["apart"] = np.int64(1)
        super().save_own_variables(store)

    def load_own_variables(self, store: dict) -> None:
        """Reads the state; a model saved without accumulation has none, and nothing waits then.

        Raises:
            ValueError: when the state was saved for other variables.
        """
        names = set(store.keys())
        gradients, is_apart = names - {"micro_step", "apart"}, "apart" in names
        is_of_use = self._apart is not None if is_apart else self._together
        if gradients and not is_of_use:
            warn_of_dropping(int(store["micro_step"][()]))
            gradients = set()
        if not gradients:
            self.adopt(NOTHING)
            return
        by_replica = any("." in name for name in gradients)
        variables = {name.partition(".")[0] for name in gradients}
        replicas, rest = divmod(len(gradients), len(variables))
        if variables != {str(index) for index in range(self._variables)} or rest:
            raise ValueError(
                "The saved accumulated gradients belong to another model. Received: "
                f"gradients of {len(variables)} variables for {self._variables} trainable ones."
            )
        self.micro_step.assign(int(store["micro_step"][()]))
        if not by_replica:
            self._adopt_total(lambda key, _: _array(store[key]))
            return

        def of_replica(key: str, replica: int) -> np.ndarray:
            return _array(store[f"{key}.{replica}"])

        now = self._strategy.num_replicas_in_sync
        if replicas == now and self._takes_rows and not self._processes.may_change:
            self.adopt(PER_REPLICA, of_replica)
            return
        # Of the sum each replica gets an equal part; replicas that train apart each get the mean.
        times = now / replicas if is_apart else 1

        def total(key: str, _: int) -> np.ndarray:
            summed = total_of(of_replica(key, r) for r in range(replicas))
            return (summed * times).astype(summed.dtype)

        self._adopt_total(total)

    def _adopt_total(self, read: Callable[[str, int], np.ndarray]) -> None:
        """Sets the sums, so that over the replicas they are what `read` returns for a variable."""
        self.adopt(SUM, read)


def warn_of_dropping(micro_batches: int) -> None:
    """Warns that micro-batches that wait for an update are dropped."""
    tf.get_logger().warning(
        "tfdist: the gradients of %d micro-batches wait for an update, and are dropped: replicas "
        "that train together weigh them in another way than replicas that train apart (`local`).",
        micro_batches,
    )


def _array(stored: Structure) -> np.ndarray:
    """An array from a file; for dtypes that HDF5 does not have, Keras returns a tensor."""
    return np.asarray(stored[()])
