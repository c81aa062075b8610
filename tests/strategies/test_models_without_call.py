"""Models that have a `train_step` and no `call`: contrastive learning, prediction, checkpoints."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from keras.src.backend.common import global_state

import tfdist
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(35, 6)).astype("float32")
OTHER_VIEW = (X + 0.1 * _RANDOM.normal(size=X.shape)).astype("float32")
LABELS = (X.sum(axis=1) > 0).astype("int64")


class Contrastive(keras.Model):
    """In the pattern of Keras' SimCLR example: two optimizers, an encoder, a linear probe.

    Samples are compared with those of their part of the batch only, as on that many replicas.
    """

    def __init__(self, parts):
        super().__init__()
        self.parts = parts
        self.encoder = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(8)])
        self.projection = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(4)])
        self.probe = layers.Dense(2)
        self.built = True  # without it Keras saves no model that has no `call`

    def compile(self, contrastive_optimizer, probe_optimizer, **options):
        super().compile(**options)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.trackers = [keras.metrics.Mean(name=n) for n in ("contrastive_loss", "probe_loss")]
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [*self.trackers, self.accuracy]

    def _contrastive_losses(self, first, second):
        first, second = ops.normalize(first, axis=1), ops.normalize(second, axis=1)
        similar = ops.matmul(first, ops.transpose(second)) / 0.5
        labels = ops.arange(ops.shape(first)[0])
        self.accuracy.update_state(labels, similar)
        losses = keras.losses.sparse_categorical_crossentropy
        there = losses(labels, similar, from_logits=True)
        return (there + losses(labels, ops.transpose(similar), from_logits=True)) / 2

    def train_step(self, data):
        (x, other), labels = data
        with tf.GradientTape() as tape:
            views = [self.projection(self.encoder(view, training=True)) for view in (x, other)]
            size = -(-ops.shape(x)[0] // self.parts)
            loss = ops.mean(
                ops.concatenate(
                    [
                        self._contrastive_losses(*(v[n * size : (n + 1) * size] for v in views))
                        for n in range(self.parts)
                    ]
                )
            )
        weights = self.encoder.trainable_weights + self.projection.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            probe_loss = self.probe_loss(labels, self.probe(self.encoder(x, training=False)))
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights))
        for tracker, value in zip(self.trackers, (loss, probe_loss)):
            tracker.update_state(value)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        (x, _), labels = data
        logits = self.probe(self.encoder(x, training=False))
        self.trackers[1].update_state(self.probe_loss(labels, logits))
        return {"probe_loss": self.trackers[1].result()}

    def predict_step(self, data):
        (x, _), _ = data
        return self.probe(self.encoder(x, training=False))


def _compiled(strategy, parts):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Contrastive(parts)
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1))
    return model


def _data(batch=8):
    return tf.data.Dataset.from_tensor_slices(((X, OTHER_VIEW), LABELS)).batch(batch)


def _fit(strategy, parts, **options):
    model = _compiled(strategy, parts)
    history = model.fit(_data(), validation_data=_data(), epochs=2, verbose=0, **options)
    return model, history.history


def _one_device():
    return tf.distribute.get_strategy()


def _assert_equal(ours, theirs):
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
def test_contrastive_learning_compares_the_samples_of_each_replica(replicas):
    model, history = _fit(tfdist.MirroredStrategy(DEVICES[:replicas]), parts=1)
    expected, expected_history = _fit(_one_device(), parts=replicas)
    _assert_equal(model.get_weights(), expected.get_weights())
    assert history.keys() == expected_history.keys()
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.full
def test_a_predict_step_without_call_also_for_fewer_samples_than_replicas(two_replicas):
    model = _fit(two_replicas, parts=1)[0]
    expected = _fit(_one_device(), parts=2)[0]
    for samples in (35, 9, 1):
        data = _data(batch=4).unbatch().take(samples).batch(4)
        _assert_equal([model.predict(data, verbose=0)], [expected.predict(data, verbose=0)])


@pytest.mark.full
def test_checkpoints_of_a_model_without_call_train_on(two_replicas, tmp_path):
    path = tmp_path / "{epoch}.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    _fit(two_replicas, parts=1, callbacks=[checkpoint])
    expected = _fit(_one_device(), parts=2)[0]
    model = _compiled(two_replicas, parts=1)
    model.fit(_data().take(1), verbose=0)
    model.load_weights(str(path).format(epoch=2))
    _assert_equal(model.get_weights(), expected.get_weights())
    for one in (model, expected):
        one.fit(_data(), verbose=0)
    _assert_equal(model.get_weights(), expected.get_weights())


class _Noisy(keras.Model):
    """Draws noise in its step, without a seed generator of its own."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def train_step(self, data):
        noise = keras.random.normal(ops.shape(data))
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.dense(data + noise) - data[:, :3]))
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"first_noise": ops.mean(ops.abs(noise[0]))}


def _start_anew():
    """Sets all seeds; before Keras 3.13 the generator of numbers without a seed goes on."""
    keras.utils.set_random_seed(0)
    global_state.set_global_attribute("global_seed_generator", None)


@pytest.mark.full
def test_noise_drawn_without_a_seed_differs_between_replicas_and_is_repeatable(two_replicas):
    def train():
        _start_anew()
        with two_replicas.scope():
            model = _Noisy()
            model.compile(keras.optimizers.SGD(0.1))
        model.fit(X, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    weights = train()
    assert all(np.isfinite(value).all() for value in weights)
    for again, value in zip(train(), weights, strict=True):
        np.testing.assert_array_equal(again, value)


@pytest.mark.parametrize(
    ("make", "data"),
    [(_Noisy, (X,)), (lambda: keras.Sequential([layers.Dense(3)]), (X, X[:, :3]))],
)
def test_training_draws_no_more_seeds_than_one_device_does(two_replicas, make, data):
    def seed_drawn_after_training(strategy):
        _start_anew()
        with strategy.scope():
            model = make()
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(*data, batch_size=8, verbose=0)
        return layers.Dropout(0.5).seed_generator.state.numpy()

    drawn = seed_drawn_after_training(two_replicas)
    np.testing.assert_array_equal(drawn, seed_drawn_after_training(_one_device()))


@pytest.mark.full
def test_a_generator_goes_on_under_another_strategy(two_replicas):
    def drawn(*strategies):
        _start_anew()
        found = [keras.random.uniform(()).numpy()]
        for strategy in strategies:
            with strategy.scope():
                model = _Noisy()
                model.compile(keras.optimizers.SGD(0.1))
            model.fit(X, batch_size=8, verbose=0)
            found.append(keras.random.uniform(()).numpy())
        return found

    three_replicas = tfdist.MirroredStrategy(DEVICES[:3])
    assert drawn(two_replicas, three_replicas, two_replicas) == drawn(*[_one_device()] * 3)


class Taught(keras.Model):
    """Its loss calls a layer that its `call` does not."""

    def __init__(self):
        super().__init__()
        self.student, self.head = keras.layers.Dense(4), keras.layers.Dense(4)

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.losses.MeanSquaredError()(self.head(x), y_pred)


def test_layers_that_only_the_loss_calls_are_built(two_replicas):
    x = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")

    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Taught()
            model.compile(keras.optimizers.Adam(0.01), metrics=["mae"])
        model.fit(x, x[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    for our, their in zip(train(two_replicas), train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)
