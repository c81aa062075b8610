"""Sums of sparse gradients: the rows of all replicas, or the whole table if it is fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.engines.current import current
from tfdist.structures import Structure

_AllReduce = Callable[[list], list]

# Bytes of the number of a row.
INDEX_BYTES = 8


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


def _sum(
    gradient: tf.IndexedSlices, spec: tf.TensorSpec, total: tf.Tensor, all_reduce: _AllReduce
) -> tf.IndexedSlices:
    def table(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.math.unsorted_segment_sum(values, indices, spec.shape[0])
        (sums,) = all_reduce([tf.reshape(own, [math.prod(spec.shape)])])
        return tf.reshape(sums, spec.shape), tf.range(spec.shape[0], dtype=indices.dtype)

    def rows(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.constant(spec.shape.as_list(), tf.int64)
        (joined,) = all_reduce([tf.IndexedSlices(values, indices, shape)])
        return joined.values, joined.indices

    @tf.autograph.experimental.do_not_convert
    def smaller(
        strategy: tf.distribute.Strategy, values: Structure, indices: Structure, total: Structure
    ) -> Structure:
        """Runs one of the two; in cross-replica context, where conditions are allowed."""

        def run(exchange: Callable[[tf.Tensor, tf.Tensor], Structure]) -> Structure:
            return strategy.extended.call_for_each_replica(exchange, args=(values, indices))

        is_table = table_is_smaller(spec, strategy.experimental_local_results(total)[0])
        return tf.cond(is_table, lambda: run(table), lambda: run(rows))

    context = tf.distribute.get_replica_context()
    parts = gradient.values, gradient.indices, total
    values, indices = context.merge_call(smaller, args=parts)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
