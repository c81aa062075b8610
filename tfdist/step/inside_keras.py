"""Installs what functions of Keras and TensorFlow do differently inside a replica's step.

Outside of a step of a tfdist strategy, these functions do what they always do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step import (
    empty_batches,
    gradients,
    keras_losses,
    loop_losses,
    loss_tags,
    masked_moments,
    metric_states,
    replica,
    weighting,
)
from tfdist.step.sharding import gathered_again, weights
from tfdist.structures import Structure

# Keeps the replicas' seeds apart from the seeds that users choose, which are small numbers. Knuth's
# multiplier (The Art of Computer Programming, volume 3, section 6.4).
_GOLDEN_RATIO = 0x9E3779B9


def install(
    check_plain: Callable[[keras.optimizers.Optimizer], None], join: Callable[[list], Any]
) -> None:
    """Installs all changes; to be called once per process.

    Args:
        check_plain: raises ValueError for an optimizer that is not wrapped and must not be applied
            in a replica's step.
        join: makes the gradient of a partitioned variable from the gradients of its parts.
    """
    compat.hook_apply(functools.partial(_plain_gradients, check_plain))
    compat.hook_gradients(gradients.of_step, join)
    compat.hook_keras_losses(keras_losses.scaled, keras_losses.unscaled, keras_losses.reduced)
    compat.hook_mean_metric(keras_losses.counted)
    compat.hook_metric_states(metric_states.unless_empty)
    compat.hook_masked_moments(masked_moments.of_global_batch)
    compat.hook_loop_losses(loop_losses.average, loop_losses.regularization, loop_losses.of_layers)
    compat.hook_seeds(_seed_of_replica)
    compat.hook_add(empty_batches.add)
    compat.hook_extremum("max", empty_batches.least)
    compat.hook_extremum("min", empty_batches.greatest)
    compat.hook_neighbourhoods(empty_batches.with_a_sample)
    compat.hook_weights(weights.make)
    compat.hook_layer_calls(gathered_again.call_layer)


def _plain_gradients(
    check_plain: Callable[[keras.optimizers.Optimizer], None],
    optimizer: keras.optimizers.Optimizer,
    grads: Structure,
    variables: Structure,
) -> Any:
    """The gradients for a plain optimizer, which sums gradients over the replicas by itself."""
    del variables
    step = replica.current()
    if step is None:
        return grads
    check_plain(optimizer)
    grads = list(grads)
    loss_tags.refuse_unweighted(grads)
    if step.own_loop and not step.notes.empty_counts:
        return weighting.of_samples(grads, step.share)
    return grads


def _seed_of_replica(generator: Any, draw: Callable[[], Any], seed: Any) -> Any:
    """The seed of a replica's random numbers; replica 0 draws the same as one device."""
    step = replica.current()
    if step is None:
        return seed
    step.notes.advances.append(draw)
    step.notes.drawn.append(generator.state)
    replica_id = tf.cast(step.replica_id, seed.dtype)
    offset = replica_id * tf.constant(_GOLDEN_RATIO, seed.dtype)
    return seed + tf.stack([offset, tf.zeros_like(offset)])
