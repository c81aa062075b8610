"""Signs without error feedback do not converge; with it they do."""

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

EPSILON = 0.3


def _abs(x):
    """The absolute value, whose derivative is never 0."""
    return tf.where(x >= 0, x, -x)


def _minimum_found(error_feedback):
    """Where subgradient steps lead on Karimireddy et al. (ICML 2019), counterexample 2.

    f(x) = ε |x₁ + x₂| + |x₁ − x₂|, from (1, 1). The signs of every subgradient, 1 or −1 where an
    absolute value is 0, are ±(1, −1), so that x₁ + x₂ never changes.
    """
    compressor = tfdist.compression.SignSGD(error_feedback=error_feedback, min_bytes=0)
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=compressor)
    with strategy.scope():
        x = keras.Variable([1.0, 1.0])
        rate = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.01)
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(rate))
        optimizer.build([x])

    def value():
        return EPSILON * _abs(x[0] + x[1]) + _abs(x[0] - x[1])

    def step():
        with tf.GradientTape() as tape:
            share = tfdist.scale_loss(value())
        optimizer.apply(tape.gradient(share, [x.value]), [x])

    @tf.function
    def train():
        for _ in tf.range(2000):
            strategy.run(step)

    train()
    return float(value()), np.array(x)


def test_signs_alone_do_not_converge():
    value, x = _minimum_found(error_feedback=False)
    np.testing.assert_allclose(x.sum(), 2.0, atol=1e-4)
    assert value >= 2 * EPSILON - 1e-4


def test_signs_with_error_feedback_converge():
    value, _ = _minimum_found(error_feedback=True)
    assert value < 0.05
