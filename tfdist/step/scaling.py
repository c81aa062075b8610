"""Scaling a loss by hand in a custom training loop."""

from __future__ import annotations

import tensorflow as tf

from tfdist.step import replica
from tfdist.step.loss_tags import LOSS, PART, tag


def scale_loss(loss: tf.Tensor) -> tf.Tensor:
    """Scales the mean loss of a replica's part of the batch by its share of the global batch.

    Use it in custom training loops: for losses where tfdist cannot tell a mean from a sum, and for
    means that you report as a sum over the replicas. Summed over the replicas, the result is the
    global mean, and its gradient is the gradient of the global mean.

    Outside `strategy.run` of a tfdist strategy the loss is returned unchanged. The same holds in
    the `train_step` of a Keras model, where the optimizer applies the share.

    Args:
        loss: a float scalar tensor, the mean over the replica's samples.

    Returns:
        A tensor like `loss`.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> strategy = tfdist.MirroredStrategy()
    >>> data = tf.data.Dataset.from_tensors(tf.constant([1.0, 3.0, 5.0, 7.0, 9.0]))
    >>> for x in strategy.experimental_distribute_dataset(data):
    ...     losses = strategy.run(lambda x: tfdist.scale_loss(tf.reduce_mean(x)), args=(x,))
    ...     print(float(strategy.reduce("SUM", losses, axis=None)))
    5.0
    """
    step = replica.current()
    if step is None or not step.own_loop:
        return loss
    if step.apart is not None:
        return tag(loss, LOSS)
    return tag(tf.math.multiply_no_nan(loss, tf.cast(step.share.fraction, loss.dtype)), PART)
