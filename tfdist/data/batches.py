"""Batches under a strategy: local parts of distributed batches, and splitting of other batches."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdist.structures import Structure


def is_distributed(data: Structure) -> bool:
    """Whether any value in `data` is distributed: one value per replica."""
    return any(_per_replica(leaf) for leaf in tf.nest.flatten(data))


def _per_replica(leaf: Structure) -> bool:
    return isinstance(leaf, tf.distribute.DistributedValues) and not isinstance(leaf, tf.Variable)


def local_parts(data: Structure, strategy: tf.distribute.Strategy) -> list[list]:
    """The distributed leaves of `data`: one list of leaves per local replica."""
    leaves = [leaf for leaf in tf.nest.flatten(data) if _per_replica(leaf)]
    per_leaf = [strategy.experimental_local_results(leaf) for leaf in leaves]
    replicas = len(strategy.extended.worker_devices)
    return [[values[i] for values in per_leaf] for i in range(replicas)]


def _as_tensor(leaf: Structure) -> Structure:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


def part(data: Structure, size: int | tf.Tensor, replica_id: int, replicas: int) -> Structure:
    """One replica's part of a global batch, as a distributed data set cuts it.

    Args:
        data: a structure of tensors whose first dimension is the batch. Other values (None,
            scalars) are returned as they are.
        size: the number of samples in the batch.
        replica_id: the replica.
        replicas: the number of all replicas.

    Returns:
        The structure with ceil(size / replicas) samples; the last parts are shorter or empty.
    """
    length = -(-size // replicas)
    start = tf.minimum(replica_id * length, size)
    stop = tf.minimum((replica_id + 1) * length, size)
    return cut(data, start, stop)


def cut(data: Structure, start: int | tf.Tensor, stop: int | tf.Tensor) -> Structure:
    """The samples from `start` to before `stop` of a batch.

    Args:
        data: as for `part`.
        start: the first sample.
        stop: the sample after the last one.
    """

    def samples_of(leaf: Structure) -> Structure:
        if isinstance(leaf, tf.SparseTensor):
            rest = leaf.dense_shape[1:]
            begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
            extent = tf.concat([[tf.cast(stop - start, tf.int64)], rest], 0)
            return tf.sparse.slice(tf.sparse.reorder(leaf), begin, extent)
        is_batched = hasattr(leaf, "shape") and tf.TensorShape(leaf.shape).rank != 0
        return leaf[start:stop] if is_batched else leaf

    return tf.nest.map_structure(samples_of, data)


def as_tensors(data: Structure) -> Structure:
    """`data` with tensors in place of NumPy arrays."""
    return tf.nest.map_structure(_as_tensor, data)


def without_static_sizes(data: Structure) -> Structure:
    """`data` with unknown batch sizes in place of static ones.

    If a batch has fewer samples than there are replicas, some replica gets no sample. If that were
    known when its step is traced, the shapes would change what is computed: Keras takes a summand
    of shape (0, n) for a bias. Nor do the shapes of one sample tell a loss of the sample from that
    of a batch. In eager execution every size is known, and `data` stay as they are.

    Args:
        data: a structure of tensors whose first dimension is the batch.
    """

    def hidden(leaf: Structure) -> Structure:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    return data if tf.executing_eagerly() else tf.nest.map_structure(hidden, data)


@contextlib.contextmanager
def explaining_open_sizes(are_hidden: bool) -> Iterator[None]:
    """Warns where a step fails that may need a static size, which TensorFlow's message calls None.

    Args:
        are_hidden: whether its arguments went through `without_static_sizes`.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if are_hidden and not tf.executing_eagerly() and "None" in str(error):
            warnings.warn(
                "This step failed where tfdist hides the number of samples, as a replica has one "
                "sample or none, or the replicas have different numbers. If it is the number that "
                "is None in the error, read `tf.shape(x)[0]` in place of `x.shape[0]`, and do not "
                f"unstack the samples. Received: {type(error).__name__}",
                stacklevel=2,
            )
        raise


def spec(data: Structure) -> Structure:
    """The type specs of batches like `data`, but of any size.

    Args:
        data: a structure of tensors and arrays; other values are returned as they are.
    """

    def spec_of(leaf: Structure) -> Structure:
        if not (tf.is_tensor(leaf) or isinstance(leaf, np.ndarray)):
            return leaf
        if leaf.shape == () or not isinstance(leaf, (tf.Tensor, np.ndarray)):
            return tf.type_spec_from_value(leaf)
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(spec_of, data)


def split(data: Structure, size: int | tf.Tensor, strategy: tf.distribute.Strategy) -> Structure:
    """Splits one global batch over the replicas like a distributed data set does.

    Args:
        data: a structure of tensors; see `part`.
        size: the number of samples in the batch.
        strategy: the strategy with its number of replicas.

    Returns:
        The structure with a value per replica.
    """

    def distribute(leaf: Structure) -> Structure:
        if not hasattr(leaf, "shape"):
            return leaf
        return strategy.experimental_distribute_values_from_function(
            lambda context: part(
                leaf, size, context.replica_id_in_sync_group, context.num_replicas_in_sync
            )
        )

    return tf.nest.map_structure(distribute, data)


def has_sparse_tensors(spec: Structure) -> bool:
    """Whether batches of the type `spec` hold sparse tensors.

    TensorFlow fails to split sparse tensors if a replica gets no sample, or if the indices are not
    in order.
    """
    return any(isinstance(leaf, tf.SparseTensorSpec) for leaf in tf.nest.flatten(spec))
