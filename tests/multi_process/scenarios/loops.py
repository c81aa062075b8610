"""Training loops of the ranks' own; each function gives weights, losses and metrics by style."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process.scenarios.common import error_of
from tests.own_loops import styles


def _run(here, *chosen):
    found = {style.__name__: styles.run(style, here.strategy) for style in chosen}
    for style in found.values():
        style["weights"] = [np.asarray(w).tolist() for w in style["weights"]]
    return found


def tutorials(here):
    """As TensorFlow's tutorials are."""
    return _run(here, styles.Tutorial, styles.TutorialWithoutSize)


def keras_losses(here):
    """With Keras losses."""
    return _run(here, styles.KerasLossWrapped, styles.KerasLossAndScaledRegularization)


def means(here):
    """With means that are computed by hand."""
    return _run(here, styles.Horovod, styles.SynchronizedNormalizationByHand)


def built_in_the_first_step(here):
    """The model and the plain optimizer are built inside of the function."""
    return _run(here, styles.BuiltLate)


def wrapped_and_built_in_the_first_step(here):
    """The model and the wrapped optimizer are built inside of the function."""
    return _run(here, styles.BuiltLateWrapped)


def refused(here):
    """A loss of which cannot be told what it is."""

    class Masked(styles.Style):
        def loss(self, x, y):
            p = self.model(x, training=True)
            return tf.reduce_sum(y - p) / tf.reduce_sum(tf.cast(y > 0.0, tf.float32))

    return {"error": error_of(styles.run, Masked, here.strategy)}


def loss_in_a_condition(here):
    """Each rank decides by itself whether it takes a loss with a divisor of all ranks."""

    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = tf.cond(
                    tf.reduce_sum(x) < 1e9,
                    lambda: self.loss(y, p, sample_weight=tf.ones_like(y)[:, 0]),
                    lambda: tf.reduce_mean(p),
                )
                loss = self.optimizer.scale_loss(loss)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    with here.strategy.scope():
        model = Model([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", keras.losses.MeanSquaredError("mean_with_sample_weight"))
    return {"error": error_of(model.fit, styles.X, styles.Y, verbose=0)}
