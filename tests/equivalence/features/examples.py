"""Models in the patterns of Keras' generative examples: a `train_step`, and no `call`.

What the examples draw at random is taken from the data here, as each replica draws numbers of its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops, optimizers

from tests.equivalence.harness import Feature, Outcome, default_data


class TwoNetworks(keras.Model):
    """A GAN whose networks have no variables before the first step."""

    has_bias = True

    def __init__(self):
        super().__init__()
        last = layers.Dense(1, use_bias=self.has_bias)
        self.critic = keras.Sequential([layers.Dense(8, activation="relu"), last])
        self.generator = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(8)])

    def compile(self, critic_optimizer, generator_optimizer, loss_function=None):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer
        self.loss_function = loss_function
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.generator_loss = keras.metrics.Mean(name="generator_loss")

    @property
    def metrics(self):
        return [self.critic_loss, self.generator_loss]

    def train_step(self, data):
        real, noise = data
        size = ops.shape(real)[0]
        fake = self.generator(noise)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            scores = self.critic(ops.concatenate([fake, real], axis=0))
            critic_loss = self.loss_function(labels, scores)
        weights = self.critic.trainable_weights
        self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, weights), weights))
        with tf.GradientTape() as tape:
            scores = self.critic(self.generator(noise))
            generator_loss = self.loss_function(ops.zeros((size, 1)), scores)
        weights = self.generator.trainable_weights
        gradients = tape.gradient(generator_loss, weights)
        self.generator_optimizer.apply_gradients(zip(gradients, weights))
        self.critic_loss.update_state(critic_loss)
        self.generator_loss.update_state(generator_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class Wasserstein(TwoNetworks):
    """Two steps of the critic for one of the generator, with a penalty on gradients."""

    # Its gradient would be 0 but for rounding, and Adam would make updates of the roundings.
    has_bias = False

    def _penalty(self, real, fake):
        between = (real + fake) / 2.0
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.critic(between, training=True)
        slopes = tape.gradient(scores, between)
        norms = ops.sqrt(ops.sum(ops.square(slopes), axis=1) + 1e-6)
        return ops.mean(ops.square(norms - 1.0))

    def train_step(self, data):
        real, noise = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                difference = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                critic_loss = difference + 10.0 * self._penalty(real, fake)
            weights = self.critic.trainable_variables
            gradients = tape.gradient(critic_loss, weights)
            self.critic_optimizer.apply_gradients(zip(gradients, weights))
        with tf.GradientTape() as tape:
            generator_loss = -ops.mean(self.critic(self.generator(noise, training=True)))
        weights = self.generator.trainable_variables
        gradients = tape.gradient(generator_loss, weights)
        self.generator_optimizer.apply_gradients(zip(gradients, weights))
        return {"last_critic_loss": critic_loss, "last_generator_loss": generator_loss}


class Sampling(layers.Layer):
    """A sample of the latent space; the noise is an input."""

    def call(self, inputs):
        mean, log_variance, noise = inputs
        return mean + ops.exp(0.5 * log_variance) * noise


class VariationalAutoencoder(keras.Model):
    """Two networks of several outputs, one optimizer, three tracked losses."""

    def __init__(self):
        super().__init__()
        inputs, noise = keras.Input((8,)), keras.Input((2,))
        hidden = layers.Dense(8, activation="relu")(inputs)
        mean, log_variance = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        sample = Sampling()([mean, log_variance, noise])
        self.encoder = keras.Model([inputs, noise], [mean, log_variance, sample])
        self.decoder = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(8)])
        self.trackers = [
            keras.metrics.Mean(name=name) for name in ("total", "reconstruction", "divergence")
        ]

    @property
    def metrics(self):
        return self.trackers

    def _three_losses(self, data):
        mean, log_variance, sample = self.encoder(list(data))
        decoded = self.decoder(sample)
        reconstruction = ops.mean(ops.sum(ops.square(data[0] - decoded), axis=1))
        divergence = -0.5 * (1.0 + log_variance - ops.square(mean) - ops.exp(log_variance))
        divergence = ops.mean(ops.sum(divergence, axis=1))
        return reconstruction + divergence, reconstruction, divergence

    def _track(self, losses):
        for tracker, loss in zip(self.trackers, losses):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self._three_losses(data)
        gradients = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        return self._track(losses)

    def test_step(self, data):
        return self._track(self._three_losses(data))


class Diffusion(keras.Model):
    """A network, its moving average, and a normalizer that was adapted before."""

    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, activation="swish"), layers.Dense(8)]
        )
        self.averaged = keras.models.clone_model(self.network)

    def compile(self, **options):
        super().compile(**options)
        self.noise_loss = keras.metrics.Mean(name="noise_loss")

    @property
    def metrics(self):
        return [self.noise_loss]

    def _loss(self, network, data, training):
        images, noise = data
        images = self.normalizer(images, training=training)
        predicted = network(0.8 * images + 0.6 * noise, training=training)
        loss = self.loss(noise, predicted)
        self.noise_loss.update_state(loss)
        return loss

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._loss(self.network, data, training=True)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for weight, averaged in zip(self.network.weights, self.averaged.weights):
            averaged.assign(0.9 * averaged + 0.1 * weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        self._loss(self.averaged, data, training=False)
        return {metric.name: metric.result() for metric in self.metrics}


def _gan() -> keras.Model:
    model = TwoNetworks()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1, clipnorm=0.1), optimizers.Adam(0.01), loss)
    return model


def _wasserstein() -> keras.Model:
    model = Wasserstein()
    model.compile(optimizers.Adam(0.01, beta_1=0.5), optimizers.Adam(0.01, beta_1=0.5))
    return model


def _autoencoder() -> keras.Model:
    model = VariationalAutoencoder()
    model.compile(optimizer=optimizers.Adam(0.01))
    return model


def _diffusion(loss: Callable | None = None) -> keras.Model:
    model = Diffusion()
    model.normalizer.adapt(default_data()[0])
    optimizer = optimizers.SGD(0.01, momentum=0.9, weight_decay=0.1)
    model.compile(optimizer=optimizer, loss=loss or keras.losses.MeanAbsoluteError())
    return model


def _data(noise: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    return default_data(samples)[0], np.random.default_rng(1).normal(size=(samples, noise)).astype(
        "float32"
    )


def _fit(model: keras.Model, noise: int, validate: bool = False) -> Outcome:
    data = tf.data.Dataset.from_tensor_slices(_data(noise, samples=65)).batch(16)
    validation = data if validate else None
    history = model.fit(data, validation_data=validation, epochs=2, verbose=0)
    return Outcome.of(model, history.history)


class SumOfLosses(keras.Model):
    """Adds the losses of all samples, and regularizes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))

    def train_step(self, data: tuple) -> dict:
        x, y = data
        with tf.GradientTape() as tape:
            losses = keras.losses.mean_squared_error(y, self.dense(x))
            loss = tf.reduce_sum(losses) / 16 + tf.add_n(self.losses)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"of the last batch": loss}


def _sum_of_losses() -> keras.Model:
    model = SumOfLosses()
    model.compile(optimizers.Adam(0.01))
    return model


FEATURES = [
    Feature(
        "train_step whose loss is a sum over samples, last batch of 1",
        _sum_of_losses,
        functools.partial(_fit, noise=3),
    ),
    Feature(
        "two optimizers (GAN) without call, last batch of 1",
        _gan,
        functools.partial(_fit, noise=4),
    ),
    Feature(
        "two optimizers (GAN): WGAN-GP, two steps of the critic, last batch of 1",
        _wasserstein,
        functools.partial(_fit, noise=4),
    ),
    Feature(
        "VAE without call, last batch of 1",
        _autoencoder,
        functools.partial(_fit, noise=2, validate=True),
    ),
    Feature(
        "diffusion without call, averaged network, last batch of 1",
        _diffusion,
        functools.partial(_fit, noise=8, validate=True),
    ),
    Feature(
        "diffusion whose step takes the gradient of one loss per sample, last batch of 1",
        functools.partial(_diffusion, keras.losses.mean_absolute_error),
        functools.partial(_fit, noise=8, validate=True),
    ),
]
