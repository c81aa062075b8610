"""A strategy of one replica whose peers are other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

from tfdist.compat.creation import BeforeCreating, create_alone
from tfdist.compat.registry import ADDED, READ, TENSORFLOW, overrides, touch
from tfdist.structures import Structure
from tfdist.validation import check_exchangeable

_STRATEGY: dict[str, str] = {
    "why": "TensorFlow has no public way to write a strategy, and Horovod's processes need one",
    "versions": TENSORFLOW,
    "instead": "a public base class of strategies",
}
_REGROUP = touch(
    *("tensorflow.python.distribute.distribute_utils", "regroup", READ),
    *("values", "wrap_class", "always_wrap"),
    **_STRATEGY,
)
_MIRRORED = touch("tensorflow.python.distribute.values", "Mirrored", READ, **_STRATEGY)
_TASK = touch(
    *("tensorflow.python.distribute.mirrored_strategy:MirroredExtended", "_task_id", ADDED),
    why="KerasTuner asks a strategy of several processes for it, as that of several workers has it",
    versions=TENSORFLOW,
    instead="a public attribute of strategies",
)


@overrides(
    *("_num_replicas_in_sync", "_in_multi_worker_mode", "_get_replica_id_in_sync_group"),
    *("_get_local_replica_id", "should_checkpoint", "should_save_summary"),
    *("_distribute_datasets_from_function", "_experimental_distribute_values_from_function"),
    *("_create_variable", "_batch_reduce_to", "_reduce_to", "_gather_to_implementation"),
    **_STRATEGY,
)
class OneReplicaExtended(MirroredExtended):
    """One replica on one local device, whose peers are other processes.

    Subclasses implement the exchange: `all_reduce`, `all_gather` and `broadcast`.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        device: the local device.
        rank: the number of this process, 0-based.
        size: the number of processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, device: str, rank: int, size: int):
        self._rank, self._size = rank, size
        setattr(self, _TASK.name, rank)
        self.before_creating: BeforeCreating = create_alone
        super().__init__(strategy, [device], tf.distribute.ReductionToOneDevice())

    def all_reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of `tensors` over the processes."""
        raise NotImplementedError

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The processes' tensors one after the other; their first dimensions may differ."""
        raise NotImplementedError

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor of process 0."""
        raise NotImplementedError

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._size

    def _in_multi_worker_mode(self) -> bool:
        return self._size > 1

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self._rank

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return 0

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return self._rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process writes summaries."""
        return self._rank == 0

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable, options: tf.distribute.InputOptions
    ) -> Any:
        context = tf.distribute.InputContext(self._size, self._rank, self._size)
        return super()._distribute_datasets_from_function(lambda _: dataset_fn(context), options)

    def _experimental_distribute_values_from_function(self, value_fn: Callable) -> Any:
        context = tf.distribute.experimental.ValueContext(self._rank, self._size)
        return _REGROUP.get()((value_fn(context),), always_wrap=True)

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        if self._size == 1:
            return super()._create_variable(next_creator, **kwargs)
        check_exchangeable(kwargs.get("dtype"), kwargs.get("name"))
        kwargs, is_equal = self.before_creating(kwargs)
        variable = super()._create_variable(next_creator, **kwargs)
        if not is_equal and variable.dtype != tf.string:
            with tf.init_scope():
                local = variable.values[0]
                local.assign(self.broadcast(local.read_value()))
        return variable

    def _local(self, value: Structure) -> Any:
        return value.values[0] if isinstance(value, tf.distribute.DistributedValues) else value

    def _reduced(self, reduce_op: tf.distribute.ReduceOp, values: list) -> list:
        """The values summed or averaged; sparse gradients stay sparse."""
        dense = {i: v for i, v in enumerate(values) if not isinstance(v, tf.IndexedSlices)}
        sums = dict(zip(dense, self.all_reduce([tf.convert_to_tensor(v) for v in dense.values()])))
        for index, value in enumerate(values):
            if index not in dense:
                sums[index] = tf.IndexedSlices(
                    self.all_gather(value.values), self.all_gather(value.indices), value.dense_shape
                )
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            sums = {i: v / tf.cast(self._size, v.dtype) for i, v in sums.items()}
        return [sums[index] for index in range(len(values))]

    def _batch_reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Structure,
        options: tf.distribute.experimental.CommunicationOptions,
    ) -> list:
        values = [self._local(value) for value, _ in value_destination_pairs]
        reduced = self._reduced(reduce_op, values)
        return [
            _REGROUP.get()((value,), wrap_class=_MIRRORED.get(), always_wrap=True)
            for value in reduced
        ]

    def _reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value: Structure,
        destinations: Structure,
        options: tf.distribute.experimental.CommunicationOptions,
    ) -> Any:
        if isinstance(value, _MIRRORED.get()) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        return self._reduced(reduce_op, [self._local(value)])[0]

    def _gather_to_implementation(
        self,
        value: Structure,
        destinations: Structure,
        axis: int,
        options: tf.distribute.experimental.CommunicationOptions,
    ) -> Any:
        value = tf.convert_to_tensor(self._local(value))
        order = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, tf.rank(value))], axis=0)
        gathered = self.all_gather(tf.transpose(value, order))
        return tf.transpose(gathered, tf.math.invert_permutation(order))
