"""Dynamic loss scaling of mixed_float16 training: one decision for all replicas.

The rule is Keras' `LossScaleOptimizer`'s (after Micikevicius et al., "Mixed Precision Training",
ICLR 2018, section 3.2): skip the step and halve the scale when any gradient is not finite, double
it after `dynamic_growth_steps` finite steps. Only here "any" includes the other replicas'.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.step import exchange


def scales_of(model: keras.Model) -> list[keras.Variable]:
    """The scales of the optimizers that are attributes of `model`, as float32 scalars."""
    scales = {}
    for value in vars(model).values():
        wraps = isinstance(value, keras.optimizers.Optimizer) and hasattr(value, "unwrap")
        inner = value.unwrap() if wraps else value
        if isinstance(inner, keras.optimizers.LossScaleOptimizer) and inner.built:
            scales[id(inner)] = inner.dynamic_scale
    return [*scales.values()]


def unscale_factor(optimizer: keras.optimizers.LossScaleOptimizer) -> tf.Tensor:
    """What gradients of the scaled loss are multiplied by: a float32 scalar."""
    return 1.0 / tf.convert_to_tensor(optimizer.dynamic_scale.value)


def all_finite(gradients: list) -> tf.Tensor:
    """Whether the gradients of every replica are finite; in replica context.

    Args:
        gradients: this replica's tensors and `tf.IndexedSlices`.

    Returns:
        A bool scalar, equal on all replicas.
    """
    overflow = tf.logical_not(all_finite_here(gradients))
    overflows = exchange.all_reduce([tf.cast(overflow, tf.float32)])
    return tf.equal(overflows[0], 0.0)


def all_finite_here(gradients: list) -> tf.Tensor:
    """Whether these gradients are finite, whatever those of others: a bool scalar.

    Args:
        gradients: tensors and `tf.IndexedSlices`.
    """
    dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in dense])


def after_finite_step(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Counts a finite step and doubles the scale when it is due; in cross-replica context."""
    counter, scale = optimizer.step_counter.value, optimizer.dynamic_scale.value
    steps = tf.convert_to_tensor(counter) + 1
    grow = tf.equal(steps, tf.cast(optimizer.dynamic_growth_steps, steps.dtype))
    counter.assign(tf.where(grow, tf.zeros_like(steps), steps))
    value = tf.convert_to_tensor(scale)
    scale.assign(tf.where(grow, value * 2.0, value))


def after_overflow(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Halves the scale; in cross-replica context."""
    counter, scale = optimizer.step_counter.value, optimizer.dynamic_scale.value
    counter.assign(tf.zeros_like(tf.convert_to_tensor(counter)))
    scale.assign(tf.convert_to_tensor(scale) * 0.5)
