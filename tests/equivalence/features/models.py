"""Kinds of models, and users' own train steps."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf
from keras import optimizers

from tests.equivalence.harness import Feature, Outcome, default_data, default_fit


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.out = keras.layers.Dense(3)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


def _compiled(make, metrics=("accuracy",)) -> keras.Model:
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(0.01), loss, metrics=list(metrics) or None)
    return model


def _functional() -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Add()([x, inputs])))


class OwnStep(Subclassed):
    """The train step of Keras' guide: it never calls `scale_loss`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, y_pred)
        return {"loss": loss, **{m.name: m.result() for m in self.metrics if m.name != "loss"}}


class RawLoss(Subclassed):
    """A loss written with TensorFlow only, normalized as one would on one device."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) + 0.01 * tf.nn.l2_loss(self.out.kernel)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"raw_loss": loss}


class Adversarial(keras.Model):
    """Two networks with an optimizer each, trained in turn within one step."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
        self.critic = keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        )
        self.loss_tracker = keras.metrics.Mean(name="critic_loss")
        self.built = True

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.critic_optimizer = critic_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, real):
        noise = tf.reverse(real, axis=[1])
        size = tf.shape(real)[0]
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            samples = tf.concat([real, self.generator(noise)], axis=0)
            critic_loss = self.loss_fn(labels, self.critic(samples))
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, variables), variables))
        with tf.GradientTape() as tape:
            loss = self.loss_fn(tf.ones((size, 1)), self.critic(self.generator(noise)))
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.loss_tracker.update_state(critic_loss, sample_weight=size)
        return {"critic_loss": self.loss_tracker.result(), "generator_loss": loss}


def _adversarial() -> keras.Model:
    model = Adversarial()
    model.compile(optimizers.Adam(0.01), optimizers.SGD(0.1, clipnorm=0.1))
    return model


def _fit_adversarial(model: keras.Model, samples: int) -> Outcome:
    data = tf.data.Dataset.from_tensor_slices(default_data(samples)[0]).batch(16)
    return Outcome.of(model, model.fit(data, epochs=2, verbose=0).history)


def _several_inputs_and_outputs() -> keras.Model:
    first, second = keras.Input((8,), name="first"), keras.Input((3,), name="second")
    x = keras.layers.Dense(8, activation="relu")(first)
    x = keras.layers.Concatenate()([x, second])
    outputs = {
        "label": keras.layers.Dense(3, name="label")(x),
        "value": keras.layers.Dense(1, name="value")(x),
    }
    model = keras.Model({"first": first, "second": second}, outputs)
    model.compile(
        optimizers.Adam(0.01),
        {
            "label": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "value": "mse",
        },
        loss_weights={"label": 1.0, "value": 0.3},
        metrics={"label": ["accuracy"], "value": ["mae"]},
    )
    return model


def _fit_several(model: keras.Model, samples: int = 64) -> Outcome:
    x, y = default_data(samples)
    inputs = {"first": x, "second": x[:, :3]}
    targets = {"label": y, "value": x[:, :1] * 2.0}
    history = model.fit(inputs, targets, batch_size=16, epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(inputs, batch_size=16, verbose=0)
    return Outcome.of(model, history.history, **predicted)


def _with_add_loss() -> keras.Model:
    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    def make() -> keras.Model:
        layers = [keras.Input((8,)), keras.layers.Dense(8), Penalty(), keras.layers.Dense(3)]
        return keras.Sequential(layers)

    return _compiled(make)


def _build(make, **options):
    return functools.partial(_compiled, make, **options)


_UNEVEN = functools.partial(default_fit, samples=67)
_NO_VALIDATION = functools.partial(default_fit, samples=67, validation_data=None)

FEATURES = [
    Feature("functional model", _build(_functional), _UNEVEN),
    Feature("subclassed model", _build(Subclassed), _UNEVEN),
    Feature("add_loss", _with_add_loss, _UNEVEN),
    Feature("several inputs and outputs, loss_weights", _several_inputs_and_outputs, _fit_several),
    Feature("own train_step", _build(OwnStep), _NO_VALIDATION),
    Feature("own train_step, loss without Keras", _build(RawLoss, metrics=()), _NO_VALIDATION),
    Feature(
        "own train_step, accumulation",
        _build(OwnStep),
        functools.partial(default_fit, validation_data=None, batch_size=16),
        options={"accumulation_steps": 2},
        reference_fit=functools.partial(default_fit, validation_data=None, batch_size=32),
        history=False,
        note="the step reports its own micro-batch",
    ),
    Feature("two optimizers (GAN)", _adversarial, functools.partial(_fit_adversarial, samples=64)),
    Feature(
        "two optimizers (GAN), last batch of 3",
        _adversarial,
        functools.partial(_fit_adversarial, samples=67),
    ),
]
