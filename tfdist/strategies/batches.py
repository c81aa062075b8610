"""Batches under a strategy: the local parts of a distributed one, and splitting one that is not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf


def is_distributed(data: Any) -> bool:
    """Whether `data` holds a value per replica anywhere."""
    return any(_per_replica(leaf) for leaf in tf.nest.flatten(data))


def _per_replica(leaf: Any) -> bool:
    return isinstance(leaf, tf.distribute.DistributedValues) and not isinstance(leaf, tf.Variable)


def local_parts(data: Any, strategy: tf.distribute.Strategy) -> list[list]:
    """The distributed leaves of `data`, one list of them per local replica."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if _per_replica(leaf)]
    per_leaf = [strategy.experimental_local_results(leaf) for leaf in leaves]
    replicas = len(strategy.extended.worker_devices)
    return [[values[i] for values in per_leaf] for i in range(replicas)]


def _as_tensor(leaf: Any) -> Any:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def part(data: Any, size: int | tf.Tensor, replica_id: int, replicas: int) -> Any:
    """One replica's part of a global batch, as a distributed data set cuts it.

    Args:
        data: a structure of tensors whose first dimension is the batch; others (None, scalars) are
            returned as they are.
        size: the number of samples in the batch.
        replica_id: the replica.
        replicas: the number of all replicas.

    Returns:
        The structure with ceil(size / replicas) samples; the last parts are shorter or empty.
    """
    length = -(-size // replicas)
    start = tf.minimum(replica_id * length, size)
    stop = tf.minimum((replica_id + 1) * length, size)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            rest = leaf.dense_shape[1:]
            begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
            extent = tf.concat([[tf.cast(stop - start, tf.int64)], rest], 0)
            return tf.sparse.slice(leaf, begin, extent)
        is_batched = hasattr(leaf, "shape") and tf.TensorShape(leaf.shape).rank != 0
        return leaf[start:stop] if is_batched else leaf

    return tf.nest.map_structure(cut, data)


def as_tensors(data: Any) -> Any:
    """`data` with tensors in place of NumPy arrays."""
    return tf.nest.map_structure(_as_tensor, data)


def split(data: Any, size: int | tf.Tensor, strategy: tf.distribute.Strategy) -> Any:
    """Splits one global batch over the replicas the way a distributed data set does.

    Args:
        data: a structure of tensors; see `part`.
        size: the number of samples in the batch.
        strategy: the strategy with its number of replicas.

    Returns:
        The structure with a value per replica.
    """

    def distribute(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return strategy.experimental_distribute_values_from_function(
            lambda context: part(
                leaf, size, context.replica_id_in_sync_group, context.num_replicas_in_sync
            )
        )

    return tf.nest.map_structure(distribute, data)


def warn_of_sparse_tensors(spec: Any) -> None:
    """Warns of batches that TensorFlow may fail to split.

    Args:
        spec: the type specs of a batch.
    """
    specs = tf.nest.flatten(spec)
    if any(isinstance(s, tf.SparseTensorSpec) and s.shape[0] is None for s in specs):
        warnings.warn(
            "TensorFlow cannot split a sparse batch so short that a replica would get no sample, "
            "and stops with an InvalidArgumentError. If the last batch may be as short, pass "
            f"`drop_remainder=True` to the data set's `batch`. Received: element_spec={spec}",
            stacklevel=3,
        )
