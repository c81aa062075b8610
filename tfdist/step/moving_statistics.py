"""Keeps statistics that layers gather from their local batch equal on all replicas.

BatchNormalization without `synchronized=True` updates its moving mean and variance from the local
batch. So the replicas' copies drift apart, and TensorFlow would save and read only the copy of
replica 0. Averaging the copies after every step loses nothing, because the update is linear.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.options import DEFAULT_BUCKET_BYTES
from tfdist.step import exchange
from tfdist.step.weighting import Share, weigh


def local_statistics(model: keras.Model) -> list[keras.Variable]:
    """The float variables that layers of `model` may update from a replica's own batch.

    These variables are the non-trainable weights of trainable layers, such as BatchNormalization's
    moving statistics. Two kinds of layers are left out: synchronized BatchNormalization, whose
    statistics are global already, and preprocessing layers, whose `adapt` has set the weights.
    """
    found: dict[int, keras.Variable] = {}
    for layer in compat.flatten_layers(model):
        has_global = getattr(layer, "synchronized", False) or hasattr(layer, "adapt")
        if has_global or not layer.trainable:
            continue
        for variable in compat.own_non_trainable_variables(layer):
            if tf.as_dtype(variable.dtype).is_floating:
                found[id(variable)] = variable
    return list(found.values())


def average(variables: list[keras.Variable], share: Share) -> None:
    """Gives every replica the mean of `variables`, weighted by the replicas' shares.

    Called in replica context after the model's step. A replica without samples has no weight.
    """
    values = [tf.convert_to_tensor(variable.value) for variable in variables]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    buckets = exchange.plan_buckets(specs, DEFAULT_BUCKET_BYTES)
    packed = [weigh(exchange.pack(bucket, values), share.fraction) for bucket in buckets]
    for bucket, flat in zip(buckets, exchange.all_reduce(packed)):
        for index, mean in zip(bucket.indices, exchange.unpack(bucket, flat)):
            variables[index].value.assign(mean)
