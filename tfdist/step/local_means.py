"""Means over replicas that have trained apart; all functions run in replica context."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.engines.current import current
from tfdist.step import exchange
from tfdist.step.exchange import Packing, enough
from tfdist.step.local_state import LocalState


def mean_of(
    own: Sequence[tf.Tensor],
    samples: tf.Tensor,
    total: tf.Tensor,
    bucket_bytes: int,
    least: tf.DType = tf.float32,
) -> list[tf.Tensor]:
    """The means over the replicas, weighted by samples.

    What a replica without samples has is ignored, even if it is no number. If no replica had a
    sample that it could use, each replica gets what it has.

    Args:
        own: what this replica has, of floating-point dtypes.
        samples: how many samples this replica has used.
        total: the sum of `samples` over the replicas.
        bucket_bytes: upper bound of a bucket in bytes.
        least: the smallest dtype that travels. Half precision would round or overflow.
    """
    if not own:
        return []
    wide = [tf.cast(v, least) if v.dtype.size < least.size else v for v in own]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in wide]
    most = enough(sum(s.shape.num_elements() * s.dtype.size for s in specs), bucket_bytes)
    packing = Packing(wide, specs, most)
    packed = [
        tf.math.multiply_no_nan(flat, tf.cast(samples, flat.dtype)) for flat in packing.pack(wide)
    ]
    sums = packing.unpack(packing.sum(packed))
    means = []
    for value, weighted in zip(own, sums):
        mean = tf.cast(weighted / tf.cast(total, weighted.dtype), value.dtype)
        means.append(tf.where(total > 0, mean, value))
    return means


def average(
    variables: Sequence[keras.Variable],
    samples: tf.Tensor,
    total: tf.Tensor,
    bucket_bytes: int,
    least: tf.DType = tf.float32,
) -> None:
    """Sets variables to their mean over the replicas; see `mean_of`."""
    own = [tf.convert_to_tensor(variable.value) for variable in variables]
    for variable, mean in zip(variables, mean_of(own, samples, total, bucket_bytes, least)):
        variable.value.assign(mean)


def equalize(
    state: LocalState, variables: Sequence[keras.Variable], least: tf.DType, bucket_bytes: int
) -> None:
    """Makes equal what steps have set besides the weights.

    Floats become the mean, weighted by the samples of the steps since the last time. Whole
    numbers have no mean: all replicas take those of the first one.

    Args:
        state: what the replicas have for themselves.
        variables: what steps have set; the same variables in the same order everywhere.
        least: see `mean_of`.
        bucket_bytes: upper bound of a bucket in bytes.
    """
    seen = state.seen.read_value()
    floats = [v for v in variables if v.value.dtype.is_floating]
    if floats:
        (total,) = exchange.all_reduce([tf.identity(seen)])
        average(floats, seen, total, bucket_bytes, least)
    for variable in variables:
        if not variable.value.dtype.is_floating:
            value = tf.convert_to_tensor(variable.value)
            first = current().broadcast(tf.cast(value, tf.int64))
            variable.value.assign(tf.cast(first, value.dtype))
