"""Kinds of models, and users' own train steps."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

from tests.equivalence.features import examples
from tests.equivalence.harness import Feature, Outcome, default_data, default_fit


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.out = keras.layers.Dense(3)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


class Tied(keras.layers.Layer):
    """Multiplies by the transposed weights of another layer."""

    def __init__(self, source, name):
        super().__init__()
        self.source, self.weight_name = source, name

    def call(self, inputs):
        weight = getattr(self.source, self.weight_name)
        return keras.ops.matmul(inputs, keras.ops.transpose(weight))


def _compiled(make, metrics=("accuracy",)) -> keras.Model:
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(0.01), loss, metrics=list(metrics) or None)
    return model


def _functional(last: str | None = None) -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, activation="tanh")(inputs)
    outputs = keras.layers.Dense(3, name=last)(keras.layers.Add()([x, inputs]))
    return keras.Model(inputs, outputs)


def _shared_layer() -> keras.Model:
    """One layer is called three times, once on another input."""
    inputs = keras.Input((8,))
    dense = keras.layers.Dense(8, activation="tanh")
    added = keras.layers.Add()([dense(dense(inputs)), dense(-inputs)])
    return keras.Model(inputs, keras.layers.Dense(3)(added))


def _tied() -> keras.Model:
    """The second layer has the transposed kernel of the first one."""
    inputs = keras.Input((8,))
    dense = keras.layers.Dense(6, activation="tanh")
    decoded = Tied(dense, "kernel")(dense(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(decoded))


def _tied_table() -> keras.Model:
    """Words are predicted by the table that they are looked up in."""
    words = keras.Input((5,), dtype="int32")
    table = keras.layers.Embedding(12, 6)
    hidden = keras.layers.Dense(6, activation="tanh")(table(words))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(words, Tied(table, "embeddings")(pooled))


def _fit_words(model: keras.Model) -> Outcome:
    words = np.random.default_rng(5).integers(0, 12, (67, 5))
    history = model.fit(words, words[:, 0], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return Outcome.of(model, history.history)


def _nested() -> keras.Model:
    """A model of models: a sequential one, and one around which something flows."""
    x = keras.Input((8,))
    block = keras.Model(x, keras.layers.Add()([x, keras.layers.Dense(8, activation="tanh")(x)]))
    hidden = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6)]
    inner = keras.Sequential([keras.Input((8,)), block, *hidden])
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Dense(3)(inner(block(inputs))))


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


class Tracked(Subclassed):
    """Tracks its loss with a metric, as Keras' guide does, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracker]

    def _track(self, data):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(data[1], self(data[0]))
        loss = tf.reduce_mean(losses)
        self.tracker.update_state(loss)
        return loss

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self._track(data))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(gradients[:2], variables[:2])
        self.optimizer.apply(gradients[2:], variables[2:])
        return {"tracked": self.tracker.result()}

    def test_step(self, data):
        self._track(data)
        return {"tracked": self.tracker.result()}


class Autoencoder(keras.Model):
    """Its data have no targets: the step takes the inputs as such."""

    def __init__(self):
        super().__init__()
        self.code = keras.layers.Dense(3, activation="tanh")
        self.out = keras.layers.Dense(8)

    def call(self, inputs):
        return self.out(self.code(inputs))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            decoded = self(data, training=True)
            loss = self.compute_loss(data, data, decoded)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return self.compute_metrics(data, data, decoded)


def _autoencoder() -> keras.Model:
    model = Autoencoder()
    model.compile(optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def _fit_autoencoder(model: keras.Model) -> Outcome:
    x, _ = default_data(67)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(32)
    history = model.fit(dataset, epochs=2, verbose=0)
    return Outcome.of(model, history.history)


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


def _tracked() -> keras.Model:
    model = _compiled(Tracked, metrics=())
    model(np.zeros((1, 8), "float32"))
    model.optimizer.build(model.trainable_variables)
    return model


def _attention() -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Reshape((4, 2))(inputs)
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def _excluded_from_weight_decay() -> keras.Model:
    model = _compiled(functools.partial(_functional, "last"))
    model.compile(optimizers.AdamW(0.01, weight_decay=0.5), model.loss)
    model.optimizer.exclude_from_weight_decay(var_names=["bias", "last"])
    return model


def _many_metrics() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    model.compile(
        optimizers.Adam(0.01),
        "binary_crossentropy",
        metrics=metrics,
        weighted_metrics=[keras.metrics.BinaryAccuracy(name="weighted_accuracy")],
    )
    return model


def _fit_many_metrics(model: keras.Model) -> Outcome:
    x, y = default_data(67)
    history = model.fit(
        x,
        (y > 0).astype("float32")[:, None],
        sample_weight=np.linspace(0.5, 2.0, 67),
        validation_split=0.3,
        batch_size=13,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    return Outcome.of(model, history.history)


def _build(make, **options):
    return functools.partial(_compiled, make, **options)


_UNEVEN = functools.partial(default_fit, samples=67)

FEATURES = [
    Feature("functional model", _build(_functional), _UNEVEN),
    Feature("subclassed model", _build(Subclassed), _UNEVEN),
    Feature(
        "add_loss",
        _with_add_loss,
        functools.partial(default_fit, samples=67, validate=True),
    ),
    Feature("several inputs and outputs, loss_weights", _several_inputs_and_outputs, _fit_several),
    Feature("MultiHeadAttention", _attention, _UNEVEN),
    Feature("shared layer", _build(_shared_layer), _UNEVEN),
    Feature("tied weights", _build(_tied), _UNEVEN),
    Feature("tied weights (Embedding)", _build(_tied_table), _fit_words),
    Feature("nested models", _build(_nested), _UNEVEN),
    Feature("exclude_from_weight_decay", _excluded_from_weight_decay, _UNEVEN),
    Feature("metrics, weighted_metrics, validation_split", _many_metrics, _fit_many_metrics),
    Feature(
        "own train_step and test_step that track the loss",
        _tracked,
        functools.partial(default_fit, samples=65, validate=True),
        note="scale_loss once, then the optimizer is applied twice",
    ),
    Feature("own train_step", _build(OwnStep), _UNEVEN),
    Feature("own train_step, loss without Keras", _build(RawLoss, metrics=()), _UNEVEN),
    Feature(
        "own train_step, accumulation",
        _build(OwnStep),
        functools.partial(default_fit, batch_size=16),
        options={"accumulation_steps": 2},
        reference_fit=functools.partial(default_fit, batch_size=32),
        history=False,
        note="the step reports its own micro-batch",
    ),
    Feature("own train_step, data without targets", _autoencoder, _fit_autoencoder),
    Feature("two optimizers (GAN)", _adversarial, functools.partial(_fit_adversarial, samples=64)),
    Feature(
        "two optimizers (GAN), last batch of 3",
        _adversarial,
        functools.partial(_fit_adversarial, samples=67),
    ),
    *examples.FEATURES,
]
