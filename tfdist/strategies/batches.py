"""Batches under a strategy: the local parts of a distributed one, and splitting one that is not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.stages.weighting import batch_size


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


def split(data: Any, strategy: tf.distribute.Strategy) -> Any:
    """Splits one global batch over the replicas the way a distributed data set does.

    Args:
        data: a structure of tensors and arrays whose first dimension is the batch; others (None,
            scalars) go to every replica.
        strategy: the strategy with its number of replicas.

    Returns:
        The structure with a value per replica: parts of ceil(batch / replicas) samples, the last
        ones shorter or empty.
    """
    data = tf.nest.map_structure(_as_tensor, data)
    size = batch_size(data)
    if size is None:
        return data
    replicas = strategy.num_replicas_in_sync
    length = -(-size // replicas)

    def part_of(leaf: Any, replica_id: int) -> Any:
        start = tf.minimum(replica_id * length, size)
        stop = tf.minimum((replica_id + 1) * length, size)
        if isinstance(leaf, tf.SparseTensor):
            rest = leaf.dense_shape[1:]
            begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
            extent = tf.concat([[tf.cast(stop - start, tf.int64)], rest], 0)
            return tf.sparse.slice(leaf, begin, extent)
        return leaf[start:stop] if len(leaf.shape) else leaf

    def distribute(leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return strategy.experimental_distribute_values_from_function(
            lambda context: part_of(leaf, context.replica_id_in_sync_group)
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
