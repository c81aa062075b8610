"""Dynamic loss scaling of mixed_float16 training: one decision for all replicas.

The rule is the one of Keras' `LossScaleOptimizer` (after Micikevicius et al., "Mixed Precision
Training", ICLR 2018, section 3.2). When any gradient is not finite, skip the step and halve the
scale. After `dynamic_growth_steps` finite steps, double the scale. The difference: here "any"
includes the gradients of the other replicas.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.step import exchange
from tfdist.step.model_optimizers import optimizers_of


def scales_of(model: keras.Model) -> list[keras.Variable]:
    """The scales of the optimizers that are attributes of `model`, as float32 scalars."""
    scales = {}
    for optimizer in optimizers_of(model).values():
        inner = optimizer.unwrap() if hasattr(optimizer, "unwrap") else optimizer
        if isinstance(inner, keras.optimizers.LossScaleOptimizer) and inner.built:
            scales[id(inner)] = inner.dynamic_scale
    return [*scales.values()]


class LossScale:
    """The loss scale of one optimizer, and the decision whether a step's gradients are used.

    Args:
        optimizer: the optimizer as the user gave it; only a `LossScaleOptimizer` scales.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._scaler = optimizer if scales else None

    @property
    def is_used(self) -> bool:
        """Whether losses are scaled."""
        return self._scaler is not None

    def inverse(self) -> tf.Tensor | None:
        """The factor for gradients of the scaled loss: a float32 scalar; None for 1."""
        if self._scaler is None:
            return None
        return 1.0 / tf.convert_to_tensor(self._scaler.dynamic_scale.value)

    def all_finite(self, gradients: list) -> tf.Tensor | None:
        """Whether the gradients of every replica are finite; in replica context.

        Args:
            gradients: this replica's tensors and `tf.IndexedSlices`.

        Returns:
            A bool scalar, equal on all replicas; None where losses are not scaled.
        """
        if self._scaler is None:
            return None
        overflow = tf.logical_not(all_finite_here(gradients))
        overflows = exchange.all_reduce([tf.cast(overflow, tf.float32)])
        return tf.equal(overflows[0], 0.0)

    def decide(self, finite: tf.Tensor | None, step: Callable[[], None]) -> None:
        """Runs `step` if gradients are finite, and updates the scale; in cross-replica context.

        Args:
            finite: the result of `all_finite` on one replica.
            step: uses the gradients.
        """

        def used() -> None:
            step()
            self.note(is_finite=True)

        if finite is None:
            step()
        else:
            tf.cond(finite, used, lambda: self.note(is_finite=False))

    def note(self, is_finite: bool) -> None:
        """Counts a finite step and doubles the scale if it is time; else halves the scale."""
        if self._scaler is None:
            return
        counter, scale = self._scaler.step_counter.value, self._scaler.dynamic_scale.value
        value = tf.convert_to_tensor(scale)
        steps = tf.convert_to_tensor(counter) + 1
        if is_finite:
            grow = tf.equal(steps, tf.cast(self._scaler.dynamic_growth_steps, steps.dtype))
            counter.assign(tf.where(grow, tf.zeros_like(steps), steps))
            scale.assign(tf.where(grow, value * 2.0, value))
        else:
            counter.assign(tf.zeros_like(steps))
            scale.assign(value * 0.5)


def all_finite_here(gradients: list) -> tf.Tensor:
    """Whether the given gradients are finite, regardless of other replicas: a bool scalar.

    Args:
        gradients: tensors and `tf.IndexedSlices`.
    """
    dense = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in dense])
