"""What a step's gradients are multiplied by before anything else happens to them."""

from __future__ import annotations

import tensorflow as tf

from tfdist.step import replica
from tfdist.step.loss_scale import LossScale


def gradient_weight(optimizer: object, loss_scale: LossScale) -> float | tf.Tensor | None:
    """The weight of this replica's gradients; None for 1.

    The weight is the share (unless the loss has it already, or the replica trains apart) times the
    inverse of the loss scale. On a replica without samples the weight is zero.

    Args:
        optimizer: the optimizer that applies the gradients; its `scale_loss` may have applied the
            share already.
        loss_scale: the loss scale of this optimizer.
    """
    weight: float | tf.Tensor | None = None
    step = replica.current()
    if step is not None:
        scaled = (
            step.own_loop or step.apart is not None or id(optimizer) in step.notes.scaled_losses
        )
        step.notes.weighted_gradients |= not scaled
        weight = step.share.nonempty if scaled else step.share.fraction
        weight = None if step.notes.empty_counts else weight
    unscale = loss_scale.inverse()
    if unscale is not None:
        weight = unscale if weight is None else unscale * weight
    return weight
