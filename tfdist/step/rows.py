"""Sums of sparse gradients: the rows of all replicas, or a table if that is fewer bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.compression.base import Compressor
from tfdist.engines.current import current
from tfdist.engines.replica_context import static_id
from tfdist.step.rounded_rows import AllReduce, RowCoder, joined, table_is_smaller
from tfdist.step.row_tables import rows_of, table_of, tables_of
from tfdist.step.tables import Tables
from tfdist.structures import Structure

_Exchange = Callable[[tf.Tensor, tf.Tensor], Structure]
_Coders = Sequence[RowCoder | None]

_CHECKSUM_BYTES = 8


def are_summed(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an update with several rows of one number is that with their sum.

    A replica that looks a row up twice has it twice in its gradient, and so has one device. Keras'
    Adam squares each of the two, and clipping sees both: their sum would give another update.

    Args:
        optimizer: Keras' optimizer, or one with a loss scale around it.
    """
    return tables_of(optimizer) is Tables.SUMS


def sums_of_rows(
    gradients: Sequence[tf.IndexedSlices],
    specs: Sequence[tf.TensorSpec],
    tables: Tables,
    coders: _Coders,
    all_reduce: AllReduce,
) -> list[tf.IndexedSlices]:
    """The sums over the replicas of sparse gradients; in replica context.

    Between processes a replica receives the rows of all others. The sum of a table of V rows by a
    ring takes as many bytes as gathering 2V rows. If all replicas together have more rows, as with
    a small vocabulary and long texts, tables travel instead. The replicas first sum the numbers of
    their rows, so all of them choose the same in each step.

    Args:
        gradients: one for each sparse gradient; the rows may differ in number between replicas.
        specs: the shapes and dtypes of the variables.
        tables: what tables hold; not `NONE`.
        coders: what rounds each gradient's numbers; None where they travel as they are.
        all_reduce: sums dense tensors, and joins sparse ones.

    Returns:
        As many sparse gradients, with the rows of all replicas, or with rows made of the table.
    """
    if not gradients:
        return []
    if current().replicas == 1 or current().processes.is_alone:
        return joined_rows(gradients, coders, all_reduce)
    own = tf.stack([tf.size(gradient.indices, tf.int64) for gradient in gradients])
    (totals,) = all_reduce([own])
    return [
        _coded(gradient, coder, functools.partial(_smaller, spec, tables, total, all_reduce))
        for gradient, spec, coder, total in zip(gradients, specs, coders, tf.unstack(totals))
    ]


def joined_rows(
    gradients: Sequence[tf.IndexedSlices], coders: _Coders, all_reduce: AllReduce
) -> list[tf.IndexedSlices]:
    """The rows of all replicas; in replica context.

    Args:
        gradients: one for each sparse gradient.
        coders: as for `sums_of_rows`.
        all_reduce: joins them.
    """
    plain = [gradient for gradient, coder in zip(gradients, coders) if coder is None]
    others = iter(all_reduce(plain))
    exchange = functools.partial(joined, all_reduce=all_reduce)
    return [
        next(others) if coder is None else _coded(gradient, coder, exchange)
        for gradient, coder in zip(gradients, coders)
    ]


def sums_of_fixed_rows(
    gradients: Sequence[tf.IndexedSlices], all_reduce: AllReduce
) -> list[tf.IndexedSlices]:
    """As `sums_of_rows`, for sparse gradients with rows that seem to be the same on all replicas.

    The replicas compare checksums of the numbers of their rows. Where all are equal, the values are
    summed place by place, and each row occurs as often as on one replica. Else rows are joined.
    Neither is rounded.

    Args:
        gradients: one for each sparse gradient.
        all_reduce: as for `sums_of_rows`.
    """
    replicas = current().replicas
    if not gradients or replicas == 1:
        return list(gradients)
    own = tf.stack([_checksum(gradient.indices) for gradient in gradients])
    row = tf.one_hot(static_id(), replicas)[:, tf.newaxis, tf.newaxis]
    (all_rows,) = all_reduce([tf.reshape(row * own, [-1])])
    checksums = tf.reshape(all_rows, [replicas, len(gradients), _CHECKSUM_BYTES])
    are_equal = tf.reduce_all(checksums == checksums[:1], axis=[0, 2])
    return [
        _one_of(
            is_equal,
            _place_by_place(all_reduce),
            _exchange(functools.partial(joined, coder=None, all_reduce=all_reduce), gradient),
            gradient,
        )
        for gradient, is_equal in zip(gradients, tf.unstack(are_equal))
    ]


def _checksum(indices: tf.Tensor) -> tf.Tensor:
    """A checksum of the numbers and their order, as float32 numbers whose sums are exact."""
    counted = tf.concat([[tf.size(indices, tf.int64)], tf.cast(indices, tf.int64)], axis=0)
    with tf.device("CPU:0"):
        return tf.cast(tf.fingerprint(counted[tf.newaxis])[0], tf.float32)


def _coded(
    gradient: tf.IndexedSlices,
    coder: RowCoder | None,
    exchanged: Callable[..., tf.IndexedSlices],
) -> tf.IndexedSlices:
    """What `exchanged` makes of a gradient, with the coder once its first update has come.

    Args:
        gradient: the replica's own.
        coder: what rounds it; None for nothing.
        exchanged: gets the gradient and `coder=`, a compressor or None.
    """
    if coder is None:
        return exchanged(gradient, coder=None)
    start = coder.compressor.start_step
    if start == 0:
        return exchanged(gradient, coder=coder.compressor)
    rounded = _exchange(functools.partial(exchanged, coder=coder.compressor), gradient)
    whole = _exchange(functools.partial(exchanged, coder=None), gradient)
    return _one_of(coder.number >= start, rounded, whole, gradient)


def _exchange(
    exchanged: Callable[[tf.IndexedSlices], tf.IndexedSlices], gradient: tf.IndexedSlices
) -> _Exchange:
    """`exchanged`, for the values and the numbers of the gradient's rows."""

    def of_both(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = exchanged(tf.IndexedSlices(values, indices, gradient.dense_shape))
        return found.values, tf.identity(found.indices)

    return of_both


def _place_by_place(all_reduce: AllReduce) -> _Exchange:
    def exchange(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (sums,) = all_reduce([tf.reshape(values, [-1])])
        return tf.reshape(sums, tf.shape(values)), tf.identity(indices)

    return exchange


def _smaller(
    spec: tf.TensorSpec,
    tables: Tables,
    rows: tf.Tensor,
    all_reduce: AllReduce,
    gradient: tf.IndexedSlices,
    coder: Compressor | None,
) -> tf.IndexedSlices:
    """The sum, by whichever takes fewer bytes: the table, or the rows of all replicas."""

    def table(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        own = table_of(values, indices, spec, tables)
        (sums,) = all_reduce([tf.reshape(own, [math.prod(own.shape)])])
        return rows_of(tf.reshape(sums, own.shape), gradient, spec, tables)

    is_table = table_is_smaller(spec, rows, tables, coder, gradient.indices.dtype.size)
    of_rows = _exchange(functools.partial(joined, coder=coder, all_reduce=all_reduce), gradient)
    return _one_of(is_table, table, of_rows, gradient)


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
