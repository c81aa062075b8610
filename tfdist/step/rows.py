"""Sums of sparse gradients: the rows of all replicas, or the whole table if it is fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.engines.current import current
from tfdist.engines.replica_context import static_id
from tfdist.structures import Structure

_AllReduce = Callable[[list], list]
_Exchange = Callable[[tf.Tensor, tf.Tensor], Structure]

# Bytes of the number of a row.
INDEX_BYTES = 8

_CHECKSUM_BYTES = 8


def are_summed(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an update with several rows of one number is that with their sum.

    A replica that looks a row up twice has it twice in its gradient, and so has one device. Keras'
    Adam squares each of the two, and clipping sees both: their sum would give another update.

    Args:
        optimizer: Keras' optimizer, or one with a loss scale around it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clips = any(getattr(inner, n) for n in ("clipnorm", "clipvalue", "global_clipnorm"))
    return type(inner) is keras.optimizers.SGD and not clips


def sums_of_rows(
    gradients: Sequence[tf.IndexedSlices],
    specs: Sequence[tf.TensorSpec],
    all_reduce: _AllReduce,
) -> list[tf.IndexedSlices]:
    """The sums over the replicas of sparse gradients; in replica context.

    Between processes a replica receives the rows of all others. The sum of a table of V rows by a
    ring takes as many bytes as gathering 2V rows. If all replicas together have more rows, as with
    a small vocabulary and long texts, tables travel instead. The replicas first sum the numbers of
    their rows, so all of them choose the same in each step.

    Args:
        gradients: one for each sparse gradient; the rows may differ in number between replicas.
        specs: the shapes and dtypes of the variables.
        all_reduce: sums dense tensors, and joins sparse ones.

    Returns:
        As many sparse gradients, with the rows of all replicas, or with all rows of the table.
    """
    if not gradients:
        return []
    if current().replicas == 1 or current().processes.is_alone:
        return all_reduce(list(gradients))
    own = tf.stack([tf.size(gradient.indices, tf.int64) for gradient in gradients])
    (totals,) = all_reduce([own])
    return [
        _sum(gradient, spec, total, all_reduce)
        for gradient, spec, total in zip(gradients, specs, tf.unstack(totals))
    ]


def table_is_smaller(spec: tf.TensorSpec, rows: Structure) -> Structure:
    """Whether the table's sum takes fewer bytes than to gather so many rows.

    Args:
        spec: the shape and dtype of the table.
        rows: the number of rows of all replicas together.
    """
    row_bytes = math.prod(spec.shape[1:]) * spec.dtype.size
    return rows * (row_bytes + INDEX_BYTES) > 2 * spec.shape[0] * row_bytes


def sums_of_fixed_rows(
    gradients: Sequence[tf.IndexedSlices], all_reduce: _AllReduce
) -> list[tf.IndexedSlices]:
    """As `sums_of_rows`, for sparse gradients with rows that seem to be the same on all replicas.

    The replicas compare checksums of the numbers of their rows. Where all are equal, the values are
    summed place by place, and each row occurs as often as on one replica. Else rows are joined.

    Args:
        gradients: one for each sparse gradient.
        all_reduce: sums dense tensors, and joins sparse ones.
    """
    replicas = current().replicas
    if not gradients or replicas == 1:
        return list(gradients)
    own = tf.stack([_checksum(gradient.indices) for gradient in gradients])
    row = tf.one_hot(static_id(), replicas)[:, tf.newaxis, tf.newaxis]
    (joined,) = all_reduce([tf.reshape(row * own, [-1])])
    checksums = tf.reshape(joined, [replicas, len(gradients), _CHECKSUM_BYTES])
    are_equal = tf.reduce_all(checksums == checksums[:1], axis=[0, 2])
    return [
        _one_of(equal, _place_by_place(all_reduce), _joining(gradient, all_reduce), gradient)
        for gradient, equal in zip(gradients, tf.unstack(are_equal))
    ]


def _checksum(indices: tf.Tensor) -> tf.Tensor:
    """A checksum of the numbers and their order, as float32 numbers whose sums are exact."""
    counted = tf.concat([[tf.size(indices, tf.int64)], tf.cast(indices, tf.int64)], axis=0)
    with tf.device("CPU:0"):
        return tf.cast(tf.fingerprint(counted[tf.newaxis])[0], tf.float32)


def _place_by_place(all_reduce: _AllReduce) -> _Exchange:
    def exchange(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (sums,) = all_reduce([tf.reshape(values, [-1])])
        return tf.reshape(sums, tf.shape(values)), tf.identity(indices)

    return exchange


def _joining(gradient: tf.IndexedSlices, all_reduce: _AllReduce) -> _Exchange:
    def exchange(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (joined,) = all_reduce([tf.IndexedSlices(values, indices, gradient.dense_shape)])
        return joined.values, joined.indices

    return exchange


def _sum(
    gradient: tf.IndexedSlices, spec: tf.TensorSpec, total: tf.Tensor, all_reduce: _AllReduce
) -> tf.IndexedSlices:
    def table(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.math.unsorted_segment_sum(values, indices, spec.shape[0])
        (sums,) = all_reduce([tf.reshape(own, [math.prod(spec.shape)])])
        return tf.reshape(sums, spec.shape), tf.range(spec.shape[0], dtype=indices.dtype)

    is_table = table_is_smaller(spec, total)
    return _one_of(is_table, table, _joining(gradient, all_reduce), gradient)


def _one_of(
    is_first: tf.Tensor, first: _Exchange, second: _Exchange, gradient: tf.IndexedSlices
) -> tf.IndexedSlices:
    """What one of two exchanges makes of a gradient: all replicas run the same; in replica context.

    Args:
        is_first: a bool scalar, the same on all replicas.
        first: gets values and indices, and returns such.
        second: the same.
        gradient: the replica's own.
    """

    @tf.autograph.experimental.do_not_convert
    def run(
        strategy: tf.distribute.Strategy, values: Structure, indices: Structure, chosen: Structure
    ) -> Structure:
        """Runs it in cross-replica context, where conditions are allowed."""

        def each(exchange: _Exchange) -> Structure:
            return strategy.extended.call_for_each_replica(exchange, args=(values, indices))

        is_first = strategy.experimental_local_results(chosen)[0]
        return tf.cond(is_first, lambda: each(first), lambda: each(second))

    context = tf.distribute.get_replica_context()
    given = gradient.values, gradient.indices, is_first
    values, indices = context.merge_call(run, args=given)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
