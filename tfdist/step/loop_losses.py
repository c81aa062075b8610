"""Tags the losses that TensorFlow's functions and Keras' layers return in a replica's step.

In Keras' steps regularization is not divided by the number of replicas, as the replicas' shares do
that. A script that imported the functions before tfdist calls TensorFlow's own. Their results have
no tag; tfdist then finds out from the graph what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.step import loss_tags, replica
from tfdist.structures import Structure


def average(
    compute: Callable,
    per_example_loss: Structure,
    sample_weight: Structure,
    global_batch_size: int | tf.Tensor | None,
) -> Any:
    """What `tf.nn.compute_average_loss` returns; `compute` is TensorFlow's.

    Without a `global_batch_size` TensorFlow assumes that all parts are equally large. Here the
    loss is divided by the true size.
    """
    step = replica.current()
    if step is None:
        return compute(per_example_loss, sample_weight, global_batch_size)
    if global_batch_size is not None:
        part = compute(per_example_loss, sample_weight, global_batch_size)
        return loss_tags.tag(part, loss_tags.PART)
    per_example_loss = tf.convert_to_tensor(per_example_loss)
    mean = compute(per_example_loss, sample_weight, tf.shape(per_example_loss)[0])
    if not step.own_loop or step.apart is not None:
        return loss_tags.tag(mean, loss_tags.LOSS)
    return loss_tags.tag(mean * tf.cast(step.share.fraction, mean.dtype), loss_tags.PART)


def regularization(scale: Callable, loss: Structure) -> Any:
    """What `tf.nn.scale_regularization_loss` returns; `scale` is TensorFlow's."""
    step = replica.current()
    if step is None:
        return scale(loss)
    if not step.own_loop or step.apart is not None:
        return tf.reduce_sum(loss)
    step.notes.seen.discard(loss_tags.ADDED)
    return loss_tags.tag(scale(loss), loss_tags.SCALED)


def of_layers(losses: list) -> list:
    """What `Layer.losses` returns; `losses` are Keras'."""
    step = replica.current()
    if step is None or not step.own_loop:
        return losses
    return [loss_tags.tag(loss, loss_tags.ADDED) for loss in losses]
