"""A `train_step` may take the gradient of several values: of samples, or losses in one tensor."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests import static_batches
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(24, 4)).astype("float32")
Y = _RANDOM.normal(size=(24, 3)).astype("float32")

full = pytest.mark.full


def _mean(y, p):
    return tf.reduce_mean(tf.square(p - y))


def _other_mean(y, p):
    return tf.reduce_mean(tf.abs(p - y))


OF_SAMPLES = {
    "one for each sample": keras.losses.mean_squared_error,
    "one for each number": lambda y, p: tf.abs(p - y),
    "one for each number, flattened": lambda y, p: tf.reshape(tf.abs(p - y), [-1]),
}
LOSSES = {
    "two means": lambda y, p: tf.stack([_mean(y, p), _other_mean(y, p)]),
    "a mean and a sum": lambda y, p: tf.stack([_mean(y, p), tf.reduce_sum(tf.abs(p - y))]),
    "two means with weights": lambda y, p: tf.stack([_mean(y, p), _other_mean(y, p)]) * [1.0, 3.0],
    "two means, joined": lambda y, p: tf.concat([_mean(y, p)[None], _other_mean(y, p)[None]], 0),
    "one mean": lambda y, p: _mean(y, p)[None],
    "a mean of each feature": lambda y, p: tf.reduce_mean(tf.square(p - y), axis=0),
    "a sum of each feature": lambda y, p: tf.reduce_sum(tf.square(p - y), axis=0),
    "sums with their dimensions": lambda y, p: tf.reduce_sum(tf.abs(p - y), 0, keepdims=True),
    "a sum with its dimensions": lambda y, p: tf.reduce_sum(tf.abs(p - y), keepdims=True),
    "sums, added up": lambda y, p: tf.reduce_sum(
        tf.reduce_sum(tf.abs(p - y), 0, keepdims=True), -1
    ),
    "twice sums": lambda y, p: 2.0 * tf.reduce_sum(tf.abs(p - y), 0),
    "weighted sums": lambda y, p: _WEIGHTS * tf.reduce_sum(tf.abs(p - y), 0),
    "as many weighted means as samples": lambda y, p: tf.reduce_sum(
        tf.stack([_mean(y, p), _other_mean(y, p)]) * [1.0, 3.0]
    ),
}
_WEIGHTS = tf.constant([1.0, 2.0, 3.0])


class Regression(keras.Model):
    def __init__(self, target):
        super().__init__()
        self.dense, self.target = keras.layers.Dense(3), target

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            target = self.target(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(target, variables), variables))
        return {"loss": tf.reduce_mean(target)}


def _trained(strategy, target, batch, way, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = Regression(target)
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.01), **options)
    return static_batches.train(model, X, Y, batch, way)


def _assert_equals_one_device(replicas, *how, **options):
    ours = _trained(tfdist.MirroredStrategy(DEVICES[:replicas]), *how, **options)
    expected = _trained(tf.distribute.get_strategy(), *how, **options)
    for our, their in zip(ours, expected, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6, rtol=1e-6)


def _params(usual, cases):
    return [case if case in usual else pytest.param(*case, marks=full) for case in cases]


_PARTS = [(2, 2, "fit"), (3, 3, "fit"), (2, 3, "batches"), (3, 4, "batches"), (2, 8, "fit")]
_ONE = "one for each sample"


@pytest.mark.parametrize(
    ("name", "replicas", "batch", "way"),
    _params(
        [(_ONE, 2, 2, "fit"), (_ONE, 3, 3, "fit"), (_ONE, 2, 3, "batches")],
        [(name, *parts) for name in OF_SAMPLES for parts in _PARTS],
    ),
)
def test_values_of_samples_add_up_also_in_a_part_of_one_sample(name, replicas, batch, way):
    _assert_equals_one_device(replicas, OF_SAMPLES[name], batch, way)


@pytest.mark.parametrize(
    ("name", "replicas", "batch", "way"),
    _params(
        [
            *(("two means", 2, 8, "fit"), ("a mean and a sum", 2, 3, "batches")),
            *(("two means with weights", 3, 12, "fit"), ("one mean", 2, 2, "fit")),
            *(("a mean of each feature", 2, 8, "fit"), ("twice sums", 2, 6, "fit")),
            *(("sums with their dimensions", 2, 8, "fit"), ("sums, added up", 2, 8, "fit")),
            *(("a sum with its dimensions", 2, 8, "fit"), ("weighted sums", 2, 6, "fit")),
            ("as many weighted means as samples", 2, 4, "fit"),
        ],
        [(name, *parts) for name in LOSSES for parts in [*_PARTS, (3, 12, "fit")]],
    ),
)
def test_each_of_several_losses_counts_as_if_it_were_alone(name, replicas, batch, way):
    _assert_equals_one_device(replicas, LOSSES[name], batch, way)


def _mean_of_heads(y, p):
    return tf.reduce_mean(tf.stack([tf.reduce_sum(tf.abs(a * p - y), -1) for a in (1, 2, 3)]), 0)


def _mean_of_features(y, p):
    return tf.reduce_mean(tf.transpose(tf.square(p - y)), 0)


@pytest.mark.parametrize("target", [_mean_of_heads, pytest.param(_mean_of_features, marks=full)])
def test_a_mean_over_as_many_as_there_are_samples_is_none_over_samples(target):
    _assert_equals_one_device(2, target, 6, "fit")


def _sum_of_numbers(y, p):
    return tf.reduce_sum(tf.square(p - y))


def _positive(y):
    """How many positive numbers each feature has."""
    return tf.cast(tf.reduce_sum(tf.cast(y > 0, tf.int32), 0), tf.float32)


@pytest.mark.parametrize(
    "target",
    [
        lambda y, p: tf.stack([_mean(y, p), _sum_of_numbers(y, p)]) * [1.0, 3.0],
        lambda y, p: tf.reduce_sum(tf.square(p - y), 0) / tf.cast(tf.shape(y)[0], tf.float32),
        lambda y, p: tf.square(tf.reduce_mean(p - y, 0)),
        lambda y, p: tf.reduce_mean(tf.boolean_mask(tf.square(p - y), y[:, 0] > 0), 0),
        lambda y, p: tf.reduce_mean(p - y, 0) * tf.reduce_mean(p, 0),
        lambda y, p: tf.reduce_mean(p - y, 0) * tf.reduce_max(tf.abs(p)),
        lambda y, p: tf.reduce_max(tf.abs(p - y), 0),
        lambda y, p: tf.reduce_mean(p - y, 0) * _positive(y),
        lambda y, p: tf.reduce_sum(tf.abs(p - y), 0) / tf.stop_gradient(tf.reduce_sum(y)),
    ],
)
@pytest.mark.parametrize("batch", [8, 6])
def test_what_is_neither_a_mean_nor_a_sum_is_warned_of(target, batch):
    """Also with as many samples in a part as there are features."""
    with pytest.warns(UserWarning, match="It cannot be told whether the target of a gradient"):
        _trained(tfdist.MirroredStrategy(DEVICES[:2]), target, batch, "fit")


def _error(y, p):
    return tf.reduce_mean(tf.square(p - y), -1)


def test_values_of_samples_times_a_number_of_all_replicas_are_not_warned_of():
    factor = tf.Variable(0.5)

    def target(y, p):
        ratio = _error(y, p) / (1.0 + tf.reduce_sum(tf.abs(y), -1))
        ratio = factor * ratio / tf.cast(tf.shape(y)[1], tf.float32)
        return ratio / 4.0 + 0.1 * _mean(y, p)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="It cannot be told")
        _assert_equals_one_device(2, target, 8, "fit")


@pytest.mark.parametrize(
    ("target", "batch", "warning"),
    [
        (OF_SAMPLES[_ONE], 3, "taken for the value of the replica's one sample"),
        (LOSSES["two means"], 8, "taken for several losses"),
        (LOSSES["one mean"], 8, "taken for several losses"),
    ],
)
def test_eager_steps_warn_where_only_the_graph_would_tell(target, batch, warning):
    with pytest.warns(UserWarning, match=warning):
        _assert_equals_one_device(2, target, batch, "batches", run_eagerly=True)


def test_eager_steps_warn_where_losses_are_as_many_as_a_multiple_of_the_samples():
    def four_means(y, p):
        return tf.stack([_mean(y, p), _other_mean(y, p), _mean(y, 2 * p), _mean(y, 3 * p)])

    with pytest.warns(UserWarning, match="taken for as many values for each sample"):
        strategy = tfdist.MirroredStrategy(DEVICES[:2])
        _trained(strategy, four_means, 4, "batches", run_eagerly=True)


def test_means_along_texts_of_any_length_are_means_over_samples():
    def trained(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Regression(lambda y, p: tf.reduce_mean(tf.square(p - y), [0, 2]))
            model(np.zeros((1, 5, 4), "float32"))
            model.compile(keras.optimizers.SGD(0.01))
        shapes = (tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None, 3]))
        parts = [(np.repeat(X[:8, None], n, 1), np.repeat(Y[:8, None], n, 1)) for n in (3, 5)]
        data = tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=shapes)
        model.fit(data, verbose=0)
        return model.get_weights()

    ours = trained(tfdist.MirroredStrategy(DEVICES[:2]))
    for our, their in zip(ours, trained(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6, rtol=1e-6)
