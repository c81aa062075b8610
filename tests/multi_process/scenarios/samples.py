"""Training where each rank has one sample of a batch."""

import keras
import numpy as np
import tensorflow as tf


class Own(keras.Model):
    """Takes the gradient of one value for each sample; looks up a row that all samples share."""

    def __init__(self):
        super().__init__()
        self.dense, self.table = keras.layers.Dense(3), keras.layers.Embedding(8, 3)

    def build(self, shape):
        self.dense.build(shape)
        self.table.build(None)

    def call(self, x):
        return self.dense(x) * self.table(tf.zeros([1], tf.int32))

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            losses = keras.losses.mean_squared_error(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(losses, variables), variables))
        return {"loss": tf.reduce_mean(losses)}


def one_each(here):
    """How many samples a batch has, as many as there are replicas; the weights trained with it."""
    replicas = here.strategy.num_replicas_in_sync
    return {"batch": replicas, "weights": weights(here.strategy, replicas)}


def weights(strategy, batch):
    """The weights after one epoch, as lists."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 4)), random.normal(size=(12, 3))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Own()
        model.build((None, 4))
        model.compile(keras.optimizers.Adam(0.01))
    data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y.astype("float32")))
    model.fit(data.batch(batch, drop_remainder=True), verbose=0)
    return [weight.tolist() for weight in model.get_weights()]
