"""Sums of half precision that are added up in float32, and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.engines.contract import Engine, Value


def sum_of_rows(rows: tf.Tensor) -> tf.Tensor:
    """The sum over the first dimension; half precision is added up in float32."""
    if rows.dtype == tf.float16:
        return tf.cast(tf.reduce_sum(tf.cast(rows, tf.float32), axis=0), tf.float16)
    return tf.reduce_sum(rows, axis=0)


def sums_of_halves(engine: Engine, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sums of float16 tensors: each replica sums one part in float32 for all replicas.

    The traffic is that of a ring all-reduce, which would round at each replica of the ring. The
    gradient of a sum is the sum of the replicas' gradients.

    Args:
        engine: carries the parts.
        tensors: of shapes that are equal on all replicas.
    """

    @tf.custom_gradient
    def summed(*given: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        return _summed(engine, given), lambda *of_sums: sums_of_halves(engine, of_sums)

    return list(summed(*tensors))


def _summed(engine: Engine, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    sizes = [tf.size(tensor) for tensor in tensors]
    vector = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    padded = tf.pad(vector, [[0, -tf.size(vector) % engine.replicas]])
    sums = engine.all_gather_parts(engine.reduce_scatter(padded))[: tf.size(vector)]
    return [
        tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
        for part, tensor in zip(tf.split(sums, sizes, num=len(tensors)), tensors)
    ]


def with_sums_of_halves(
    engine: Engine, values: Sequence[Value], sums: Callable[[Sequence[Value]], list[Value]]
) -> list[Value]:
    """The sums of `values`, those of dense float16 tensors by `sums_of_halves`.

    With two replicas there is one addition, which rounds once anyway.

    Args:
        engine: carries the parts.
        values: tensors and `tf.IndexedSlices`, as for `Engine.all_reduce`.
        sums: gives the sums of the other values.
    """
    if engine.replicas < 3:
        return sums(values)
    halves = {
        place: value
        for place, value in enumerate(values)
        if value.dtype == tf.float16 and not isinstance(value, tf.IndexedSlices)
    }
    others = iter(sums([value for place, value in enumerate(values) if place not in halves]))
    own = iter(sums_of_halves(engine, list(halves.values())) if halves else [])
    return [next(own) if place in halves else next(others) for place in range(len(values))]
