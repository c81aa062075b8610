"""A process' part of a data set: of global batches, or of data that the user has divided."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.tuning import without_tuning
from tfdist.data import batches
from tfdist.step.weighting import batch_size
from tfdist.structures import Structure


def mapped(dataset: tf.data.Dataset, function: Callable[[Any], Any]) -> tf.data.Dataset:
    """`dataset`, each batch replaced by what `function` makes of it."""
    is_tuple = _is_plain_tuple(dataset.element_spec)
    return dataset.map(lambda *batch: function(batch if is_tuple else batch[0]))


def _is_plain_tuple(spec: Structure) -> bool:
    """Whether `tf.data` hands an element of the type `spec` to functions in several arguments.

    A named tuple is handed over as it is.
    """
    return type(spec) is tuple


def each_by_itself(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """`dataset`, of which TensorFlow divides each batch by itself over the replicas.

    If TensorFlow finds the number in `batch(16)`, it may take all samples for one stream, and cut
    the stream anew by this number: if the samples come from files, or if the auto-shard policy is
    neither AUTO nor DATA. Then a short batch would be filled up from the next one, and there is a
    next one where `repeat`, `shuffle` or `concatenate` follow `batch`. TensorFlow looks for the
    number through many kinds of data sets, but not through a `map`.
    """
    return mapped(dataset, lambda batch: batch) if replicas > 1 else dataset


def of_global_batches(
    dataset: tf.data.Dataset,
    rank: int,
    local_replicas: int,
    replicas: int,
    map_batches: Callable[[tf.data.Dataset, Callable], tf.data.Dataset] = mapped,
) -> tf.data.Dataset:
    """For every batch of `dataset`, the parts of this process' replicas, one after the other.

    Every process reads all of the data and keeps its part, so that the global batches are the same
    as on one device.

    Args:
        dataset: the global batches.
        rank: the rank of this process.
        local_replicas: the number of replicas in each process.
        replicas: the number of all replicas.
        map_batches: maps a data set by a function of a batch; called once with both.
    """
    is_tuple = _is_plain_tuple(dataset.element_spec)
    dataset = without_tuning(dataset)

    def part_of(batch: Structure, index: int = 0) -> Structure:
        size = batch_size(batch)
        if size is None:
            return batch
        return batches.part(batch, size, rank * local_replicas + index, replicas)

    if local_replicas == 1:
        return map_batches(dataset, part_of).prefetch(tf.data.AUTOTUNE)

    def parts(*components: Structure) -> tf.data.Dataset:
        """The parts of one batch in turn; shapes are static where the batch's shapes are."""
        batch = components if is_tuple else components[0]
        each = [tf.data.Dataset.from_tensors(part_of(batch, n)) for n in range(local_replicas)]
        return functools.reduce(tf.data.Dataset.concatenate, each)

    return map_batches(dataset, lambda batch: batch).flat_map(parts).prefetch(local_replicas)


def static_batch_size(spec: Structure) -> int | None:
    """The number of samples in every batch of the type `spec`, None where it may vary."""
    for leaf in tf.nest.flatten(spec):
        if hasattr(leaf, "shape") and leaf.shape.rank != 0:
            return leaf.shape[0] if leaf.shape.rank else None
    return None


def padded(dataset: tf.data.Dataset, length: int) -> tf.data.Dataset:
    """`dataset` followed by empty batches, `length` in all; -1 for no end, -2 for no padding.

    Empty batches have no samples, and so the weight 0. A process whose own data end before the data
    of other processes goes on with empty batches.
    """
    own = int(dataset.cardinality())
    if length in (own, tf.data.UNKNOWN_CARDINALITY):
        return dataset
    empty = tf.data.Dataset.from_tensors(_empty(dataset.element_spec))
    return dataset.concatenate(empty.repeat(-1 if length < 0 else length - own))


def _empty(spec: Structure, size: int = 0) -> Structure:
    """A batch of the type `spec` with `size` samples of zeros; other unknown dimensions are 0."""

    def empty(leaf: Structure) -> Structure:
        if not hasattr(leaf, "shape"):
            raise ValueError(
                "Processes share batches of tensors: leave out what is None, or the optional. "
                f"Received: element_spec={spec}"
            )
        if leaf.shape.rank is None:
            raise ValueError(
                "Processes share batches whose number of dimensions is known: give the tensors "
                f"their shape with `set_shape` in `Dataset.map`. Received: element_spec={spec}"
            )
        if isinstance(leaf, tf.SparseTensorSpec):
            shape = [size] + [length or 0 for length in leaf.shape[1:]]
            indices = tf.zeros([0, len(shape)], tf.int64)
            return tf.SparseTensor(indices, tf.zeros([0], leaf.dtype), shape)
        if isinstance(leaf, tf.RaggedTensorSpec):
            # Behind the ragged dimensions, all rows are of one shape.
            uniform = [length or 0 for length in leaf.shape[leaf.ragged_rank + 1 :]]
            values = tf.zeros([0, *uniform], leaf.dtype)
            outer = tf.zeros([size + 1], leaf.row_splits_dtype)
            inner = [tf.zeros([1], leaf.row_splits_dtype)] * (leaf.ragged_rank - 1)
            return tf.RaggedTensor.from_nested_row_splits(values, [outer, *inner])
        shape = [size] + [length or 0 for length in leaf.shape[1:]]
        return tf.zeros(shape if leaf.shape.rank else [], leaf.dtype)

    return tf.nest.map_structure(empty, spec)


def with_unknown_sizes(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with batches whose static size is forgotten.

    Another process may have batches of another size, so sizes must not become constants in a trace.
    """
    # When TensorFlow joins two data sets, it forgets sizes that differ. The second has no element.
    spec = dataset.element_spec
    other = _empty(spec, size=1 if static_batch_size(spec) == 0 else 0)
    return dataset.concatenate(tf.data.Dataset.from_tensors(other).take(0))


def check_auto_shard(dataset: tf.data.Dataset) -> None:
    """Raises ValueError when `dataset` asks for anything but parts of global batches."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    allowed = (tf.data.experimental.AutoShardPolicy.AUTO, tf.data.experimental.AutoShardPolicy.DATA)
    if policy not in allowed:
        raise ValueError(
            "tfdist divides global batches, so that training equals one device's. Leave the "
            "auto-shard policy at AUTO or DATA, or divide the data yourself and hand them in with "
            "`strategy.distribute_datasets_from_function`. Received: a data set with "
            f"auto_shard_policy={policy.name}"
        )
