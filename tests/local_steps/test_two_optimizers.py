"""A GAN: two optimizers, one of which is applied twice in a step, and passes after updates."""

import keras
import numpy as np
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps.test_by_hand import check_equal_copies

ROWS, BATCH, EPOCHS, STEPS = 41, 8, 2, 4  # the last batch of an epoch has one sample


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(7)
        self.generator = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "tanh"),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(4),
            ]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )

    def call(self, x):
        return self.discriminator(self.generator(x))

    def train_both(self, x, of_discriminator, of_generator):
        """Two updates of the discriminator, then one of the generator."""
        noise = tf.sin(3.0 * x)
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.discriminator(self.generator(noise, training=True))
                real = self.discriminator(x)
                loss = tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-real))
            variables = self.discriminator.trainable_variables
            of_discriminator.apply(tape.gradient(loss, variables), variables)
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise, training=True))
            loss = tf.reduce_mean(tf.nn.softplus(-fake))
        variables = self.generator.trainable_variables
        of_generator.apply(tape.gradient(loss, variables), variables)
        self.generator(noise, training=True)
        return {"loss": loss}

    def train_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        return self.train_both(x, self.of_discriminator, self.optimizer)


def data():
    return np.random.default_rng(3).normal(size=(ROWS, 4)).astype("float32")


def optimizers():
    return keras.optimizers.Adam(0.02, epsilon=1e-3), keras.optimizers.SGD(0.1, momentum=0.9)


def mean(of_replicas, weights):
    for same in zip(*of_replicas, strict=True):
        value = sum(w * v.numpy().astype("float64") for w, v in zip(weights, same))
        for variable in same:
            variable.assign((value / sum(weights)).astype("float32"))


def by_hand(replicas):
    """The discriminator's rounds are of two steps, the generator's of four."""
    gans = [Gan() for _ in range(replicas)]
    pairs = [optimizers() for _ in gans]
    parts = {"discriminator": 2, "generator": STEPS}
    updates, samples = dict.fromkeys(parts, 0), {name: np.zeros(replicas) for name in parts}
    unsettled, x = np.zeros(replicas), data()

    def meet(names):
        for name in names:
            if updates[name]:
                mean([getattr(gan, name).trainable_variables for gan in gans], samples[name])
            updates[name], samples[name][:] = 0, 0
        if names and unsettled.any():
            statistics = [
                [v for v in gan.generator.non_trainable_variables if "float" in v.dtype]
                for gan in gans
            ]
            mean(statistics, unsettled)
            unsettled[:] = 0

    for _ in range(EPOCHS):
        for start in range(0, ROWS, BATCH):
            batch = x[start : start + BATCH]
            length = -(-len(batch) // replicas)
            for replica, (gan, pair) in enumerate(zip(gans, pairs)):
                part = batch[replica * length : (replica + 1) * length]
                if len(part):
                    gan.train_both(tf.constant(part), *pair)
                    unsettled[replica] += len(part)
                    samples["discriminator"][replica] += 2 * len(part)
                    samples["generator"][replica] += len(part)
            updates["discriminator"] += 2
            updates["generator"] += 1
            meet([name for name in parts if updates[name] >= STEPS])
        meet([name for name in parts if updates[name]])
    return gans[0]


def test_a_gan_equals_the_same_by_hand():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(STEPS))
    with strategy.scope():
        model = Gan()
        of_discriminator, of_generator = optimizers()
        model.compile(of_generator)
        model.of_discriminator = of_discriminator
    model.fit(data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    expected = by_hand(2)
    check_equal_copies(model.weights)
    for actual, variable in zip(model.weights, expected.weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(actual.numpy() - variable.numpy()).max() <= 1e-6, actual.path
