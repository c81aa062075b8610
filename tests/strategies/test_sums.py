"""A `train_step` may take the gradient of a sum over samples: it equals one device all the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfdist
from tests import static_batches
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(35, 6)).astype("float32")
Y = _RANDOM.normal(size=(35, 4)).astype("float32")


def _squares(y, prediction):
    return ops.sum(ops.square(y - prediction), axis=1)


def _correlation(y, prediction):
    """No sum over samples: of features, each a mean over the samples."""
    correlations = ops.matmul(ops.transpose(prediction), y) / ops.cast(ops.shape(y)[0], "float32")
    return ops.sum(ops.square(correlations - 1.0))


def _mask(y):
    """Few of the values, and other numbers of them in each part of a batch."""
    return ops.cast(y > 0.5, "float32")


def _rare(y):
    """So few of the values that some parts of a batch have none."""
    return ops.cast(y > 1.8, "float32")


def _mean_over_two(y, p):
    """The mean over the samples of two members' errors, members first."""
    members = tf.stack([p, 2.0 * p])
    errors = tf.reduce_sum(tf.square(members - y), axis=[0, 2])
    return tf.reduce_sum(errors) / _number(tf.shape(members)[1])


def _mean_over_selections(y, p):
    """The mean over values of two selections."""
    selections = [tf.boolean_mask(tf.abs(y - p), y > 0.5), tf.boolean_mask(p, y < -0.7)]
    return tf.reduce_mean(tf.concat(selections, 0))


def _number(value):
    return tf.cast(value, tf.float32)


def _chosen(values, y):
    """The samples with a large first target: other numbers of them in each part of a batch."""
    return tf.boolean_mask(values, y[:, 0] > -1.0)


def _sum_over_chosen(y, prediction):
    chosen = tf.where(y[:, 0] > -1.0)[:, 0]
    total = tf.reduce_sum(tf.gather(_squares(y, prediction), chosen))
    return total / _number(tf.shape(chosen)[0])


@tf.function
def _sum_in_a_function(y, prediction):
    return tf.reduce_sum(_squares(y, prediction))


# A loss by the targets, the predictions and the model.
SUMS = {
    "sum": lambda y, p, model: ops.sum(_squares(y, p)),
    "sum of squares": lambda y, p, model: tf.nn.l2_loss(y - p),
    "sum over a global batch size": lambda y, p, model: tf.reduce_sum(_squares(y, p)) / 16,
    "average loss": lambda y, p, model: tf.nn.compute_average_loss(_squares(y, p)),
    "average loss, global batch size": lambda y, p, model: tf.nn.compute_average_loss(
        _squares(y, p), global_batch_size=16
    ),
    "sum, mean and regularization": lambda y, p, model: (
        ops.sum(_squares(y, p))
        - 3.0 * ops.mean(ops.abs(p))
        + keras.losses.MeanAbsoluteError()(y, p)
        + tf.nn.scale_regularization_loss(model.losses)
    ),
    "sum of a Keras loss": lambda y, p, model: keras.losses.MeanSquaredError("sum")(y, p),
    "mean by hand": lambda y, p, model: (
        ops.sum(_squares(y, p)) / ops.cast(ops.shape(y)[0], "float32")
    ),
    "sum in another order": lambda y, p, model: ops.sum(ops.transpose(ops.square(y - p))),
    "sum of the sums of features": lambda y, p, model: ops.sum(ops.sum(ops.square(y - p), axis=0)),
    "mean of the sums of features": lambda y, p, model: ops.mean(ops.sum(ops.abs(y - p), axis=0)),
    "sum of the means of features": lambda y, p, model: ops.sum(ops.mean(ops.abs(y - p), axis=0)),
    "sum in a function": lambda y, p, model: _sum_in_a_function(y, p),
    "sum in a condition": lambda y, p, model: tf.cond(
        tf.reduce_sum(y) > -1e6, lambda: tf.reduce_sum(_squares(y, p)), lambda: 0.0
    ),
    "masked mean": lambda y, p, model: (
        tf.reduce_sum(ops.square(y - p) * _mask(y)) / tf.reduce_sum(_mask(y))
    ),
    "masked means, an epsilon, a sum": lambda y, p, model: (
        2.0
        * (tf.reduce_sum(_squares(y, p)) + 3.0 * tf.reduce_mean(ops.abs(p)))
        / (tf.reduce_sum(_mask(y)) + 0.1)
        - tf.math.divide_no_nan(tf.reduce_mean(ops.abs(p) * _mask(y)), tf.reduce_mean(_mask(y)))
        + tf.nn.l2_loss(p)
    ),
    "mean over chosen values": lambda y, p, model: (
        3.0 * tf.reduce_mean(tf.boolean_mask(ops.square(y - p), y > 0.5))
    ),
    "sum over the length of the targets": lambda y, p, model: (
        tf.reduce_sum(_squares(y, p)) / _number(tf.shape(y)[1])
    ),
    "sum over lengths": lambda y, p, model: (
        tf.reduce_sum(_squares(y, p)) / _number(tf.maximum(tf.reduce_prod(tf.shape(y)[1:]), 1))
    ),
    "sum over all elements": lambda y, p, model: (
        tf.reduce_sum(_squares(y, p)) / _number(tf.size(y))
    ),
    "sum over samples times length": lambda y, p, model: (
        tf.reduce_sum(_squares(y, p)) / _number(tf.shape(y)[0] * tf.shape(y)[1])
    ),
    "sum of a Keras loss over samples": lambda y, p, model: (
        keras.losses.MeanSquaredError("sum")(y, p) / _number(tf.shape(y)[0])
    ),
    "Keras loss of chosen samples": lambda y, p, model: keras.losses.MeanSquaredError()(
        _chosen(y, y), _chosen(p, y)
    ),
    "mean of the losses of chosen samples": lambda y, p, model: tf.reduce_mean(
        tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(_chosen(y, y)), _chosen(p, y))
    ),
    "mean of means of chosen samples": lambda y, p, model: tf.reduce_mean(
        keras.losses.mean_squared_error(_chosen(y, y), _chosen(p, y))
    ),
    "sum over the number of chosen samples": lambda y, p, model: _sum_over_chosen(y, p),
    "masked mean of one or more": lambda y, p, model: (
        tf.reduce_sum(ops.square(y - p) * _rare(y)) / tf.maximum(tf.reduce_sum(_rare(y)), 1.0)
    ),
    "masked mean by a stopped sum": lambda y, p, model: (
        tf.reduce_sum(ops.square(y - p) * _mask(y))
        / tf.maximum(1.0, tf.stop_gradient(tf.reduce_sum(_mask(y))))
    ),
    "masked mean by a stopped maximum": lambda y, p, model: (
        tf.reduce_sum(ops.square(y - p) * _rare(y))
        / tf.stop_gradient(tf.maximum(tf.reduce_sum(_rare(y)), 1.0))
    ),
    "sum over one or more chosen values": lambda y, p, model: (
        tf.reduce_sum(ops.square(y - p) * _rare(y))
        / _number(tf.maximum(tf.shape(tf.where(_rare(y) > 0.0))[0], 1))
    ),
    "mean over samples of two members": lambda y, p, model: _mean_over_two(y, p),
    "mean over two selections": lambda y, p, model: _mean_over_selections(y, p),
    "weights over the number of samples": lambda y, p, model: (
        tf.reduce_mean(_squares(y, p))
        + tf.reduce_sum(tf.square(model.kernel)) / _number(tf.shape(y)[0])
    ),
    "sum and weights over the number of samples": lambda y, p, model: (
        (tf.reduce_sum(_squares(y, p)) + tf.reduce_sum(tf.square(model.kernel)))
        / _number(tf.shape(y)[0])
    ),
    "weights of the model": lambda y, p, model: (
        ops.mean(_squares(y, p)) + 0.1 * ops.sum(ops.square(model.kernel))
    ),
}


class Regression(keras.Model):
    def __init__(self, loss, scales):
        super().__init__()
        self.dense = layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1))
        self.loss_of, self.scales = loss, scales
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, x):
        return self.dense(x)

    @property
    def kernel(self):
        return self.dense.kernel

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            value = self.loss_of(y, self(x, training=True), self)
            loss = self.optimizer.scale_loss(value) if self.scales else value
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(value)
        return {"tracked": self.tracker.result(), "of the last batch": value}


class ComputesLoss(keras.Model):
    def __init__(self, loss):
        super().__init__()
        self.dense = layers.Dense(4)
        self.loss_of = loss

    def call(self, x):
        return self.dense(x)

    @property
    def kernel(self):
        return self.dense.kernel

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(y, y_pred, self)


class Penalty(layers.Layer):
    """Adds a loss of its inputs."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


def _assert_trains_as_on_one_device(make, replicas, batch=16, y=Y, **options):
    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = make()
            model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), **options)
        data = tf.data.Dataset.from_tensor_slices((X, y)).batch(batch)
        history = model.fit(data, epochs=3, verbose=0).history
        return [*model.get_weights(), *history.values()]

    ours = train(tfdist.MirroredStrategy(DEVICES[:replicas]))
    expected = train(tf.distribute.get_strategy())
    for our, their in zip(ours, expected, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6, rtol=1e-6)


# One of each kind; the full suite has all of them in all tests.
USUAL = (
    *("sum", "sum in a function", "sum in a condition", "mean over chosen values"),
    *("sum over lengths", "sum of a Keras loss over samples", "Keras loss of chosen samples"),
    *("mean of the losses of chosen samples", "sum over the number of chosen samples"),
    *("masked mean of one or more", "mean over samples of two members"),
    *("masked mean by a stopped sum", "weights over the number of samples"),
)
full = pytest.mark.full


def _names(usual):
    return [name if name in usual else pytest.param(name, marks=full) for name in SUMS]


@pytest.mark.parametrize("scales", [False, pytest.param(True, marks=full)])
@pytest.mark.parametrize("name", _names(USUAL))
def test_sums_over_samples_equal_one_device(name, scales):
    _assert_trains_as_on_one_device(lambda: Regression(SUMS[name], scales), replicas=2)


@pytest.mark.parametrize("name", _names(("masked mean",)))
def test_sums_on_three_replicas_of_which_the_last_batch_leaves_one_without_samples(name):
    _assert_trains_as_on_one_device(lambda: Regression(SUMS[name], False), 3, batch=33)


# What a loss function and a `compute_loss` compute is told apart by the same code.
@pytest.mark.parametrize("name", _names(("mean by hand",)))
def test_a_compute_loss_of_ones_own_may_sum(name):
    _assert_trains_as_on_one_device(lambda: ComputesLoss(SUMS[name]), replicas=2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: ops.sum(ops.square(x)),
        pytest.param(lambda x: ops.sum(ops.square(x), axis=1), marks=full),
        pytest.param(lambda x: ops.mean(ops.square(x)), marks=full),
        lambda x: _sum_in_a_function(0.5, x),
    ],
)
def test_a_layer_may_add_a_sum(loss):
    def make():
        return keras.Sequential([layers.Dense(4), Penalty(loss)])

    _assert_trains_as_on_one_device(make, replicas=2, loss="mse")


def test_a_compiled_loss_function_may_sum():
    def loss(y, prediction):
        return tf.reduce_sum(_squares(y, prediction))

    _assert_trains_as_on_one_device(
        lambda: keras.Sequential([layers.Dense(4)]), replicas=2, loss=loss, metrics=["mae"]
    )


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=full)])
def test_a_compiled_loss_function_may_choose_samples(eager):
    """The mean over labelled samples only; the other replica may have none of them."""

    def loss(y, prediction):
        is_labelled = tf.not_equal(y[:, 0], -1.0)
        chosen = tf.boolean_mask(y, is_labelled), tf.boolean_mask(prediction, is_labelled)
        return keras.losses.mean_squared_error(*chosen)

    y = Y.copy()
    y[:, 0] = np.where(np.arange(35) % 16 < 9, y[:, 0], -1.0)
    _assert_trains_as_on_one_device(
        lambda: keras.Sequential([layers.Dense(4)]), 2, y=y, loss=loss, run_eagerly=eager
    )


def test_a_loss_of_weights_alone_in_eager_steps_of_which_the_last_has_an_empty_part():
    def loss(y, p, model):
        return tf.reduce_mean(_squares(y, p)) + keras.losses.MeanSquaredError()(
            tf.zeros((6, 4)), model.kernel
        )

    make = lambda: Regression(loss, True)  # noqa: E731
    _assert_trains_as_on_one_device(make, 3, batch=33, run_eagerly=True)


def test_a_loss_weight_is_no_number_of_samples():
    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            inputs = keras.Input((6,))
            model = keras.Model(inputs, [layers.Dense(4)(inputs), layers.Dense(4)(inputs)])
            losses = [keras.losses.MeanSquaredError("sum"), "mse"]
            model.compile(keras.optimizers.SGD(1e-3), losses, loss_weights=[0.25, 1.0])
        data = tf.data.Dataset.from_tensor_slices((X[:32], (Y[:32], Y[:32])))
        model.fit(data.batch(8, drop_remainder=True), verbose=0)
        return model.get_weights()

    ours = train(tfdist.MirroredStrategy(DEVICES[:2]))
    for our, their in zip(ours, train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)


def test_a_sum_by_a_number_that_may_be_the_samples_is_warned_of(two_replicas):
    def loss(y, p, model):
        return keras.losses.MeanSquaredError("sum")(y, p) / 4.0

    data = tf.data.Dataset.from_tensors((X[:8], Y[:8]))
    with pytest.warns(UserWarning, match="It cannot be told .* a mean over the samples or a sum"):
        with two_replicas.scope():
            model = Regression(loss, False)
            model.compile(keras.optimizers.SGD(1e-3))
        model.fit(data.unbatch().batch(8, drop_remainder=True), verbose=0)


def _means(y, p):
    """The mean over the samples of each feature."""
    return tf.reduce_mean(tf.square(y - p), axis=0)


@pytest.mark.parametrize(
    ("loss", "is_exact"),
    [
        (lambda y, p: tf.reduce_sum(tf.stack([c * _means(y, p) for c in (1.0, 2.0)] * 2)), True),
        (lambda y, p: tf.reduce_sum(tf.concat([tf.reduce_mean(_means(y, p))[None]] * 4, 0)), True),
        (lambda y, p: tf.reduce_sum(tf.reduce_max(tf.abs(y - p), axis=0)), False),
        (lambda y, p: tf.reduce_mean(tf.reduce_max(tf.abs(y - p), axis=0)), False),
    ],
    ids=["stack", "joined", "sum of the largest", "mean of the largest"],
)
def test_no_sum_over_samples_although_there_are_as_many(two_replicas, loss, is_exact):
    """Four samples in each part, and four losses or features."""

    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Regression(lambda y, p, model: loss(y, p), False)
            model.compile(keras.optimizers.SGD(1e-3))
        return static_batches.train(model, X[:8], Y[:8], 8, "fit")

    with pytest.warns(UserWarning, match="It cannot be told .* a mean over the samples or a sum"):
        ours = train(two_replicas)
    if is_exact:
        for our, their in zip(ours, train(tf.distribute.get_strategy()), strict=True):
            np.testing.assert_allclose(our, their, atol=1e-6)


class Tokens(keras.Model):
    """Predicts each value of a ragged target from the values of a ragged input."""

    def __init__(self, loss):
        super().__init__()
        self.dense, self.loss_of = layers.Dense(3), loss

    def call(self, x):
        return self.dense(x.flat_values[:, None])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y.flat_values, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        pytest.param(
            lambda y, p: tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=p)
            ),
            marks=full,
        ),
        pytest.param(
            lambda y, p: tf.reduce_sum(tf.square(_number(y) - p[:, 0])) / _number(tf.size(y)),
            marks=full,
        ),
    ],
    ids=["Keras", "mean", "sum over the size"],
)
def test_a_loss_of_the_values_of_ragged_targets_equals_one_device(loss):
    lengths = np.arange(35) % 5
    x = tf.RaggedTensor.from_row_lengths(_RANDOM.normal(size=lengths.sum()), lengths)
    y = tf.RaggedTensor.from_row_lengths(_RANDOM.integers(0, 3, lengths.sum()), lengths)

    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Tokens(loss)
            model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices((tf.cast(x, tf.float32), y)).batch(16)
        history = model.fit(data, epochs=2, verbose=0).history
        return [*model.get_weights(), *history.values()]

    ours = train(tfdist.MirroredStrategy(DEVICES[:3]))
    for our, their in zip(ours, train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)


@pytest.mark.parametrize(
    "make", [keras.losses.Dice, pytest.param(keras.losses.Tversky, marks=full)]
)
def test_a_loss_of_overlaps_equals_one_device(make):
    """A sum over another one, that depends on the predictions as well."""

    def model():
        return keras.Sequential([layers.Dense(4, activation="sigmoid")])

    _assert_trains_as_on_one_device(model, replicas=3, loss=make(), batch=33)


def test_a_loss_that_cannot_be_told_is_warned_of(two_replicas):
    with pytest.warns(UserWarning, match="It cannot be told .* the operation Einsum"):
        with two_replicas.scope():
            model = Regression(lambda y, p, model: tf.einsum("ij,ij->", y, p), False)
            model.compile(keras.optimizers.SGD(1e-3))
        model.train_on_batch(X[:8], Y[:8])


def test_sums_of_single_batches(two_replicas):
    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Regression(SUMS["sum"], False)
            model.compile(keras.optimizers.SGD(1e-3))
        model.train_on_batch(X[:7], Y[:7])
        model.train_on_batch(X[:8], Y[:8])
        return model.get_weights()

    for our, their in zip(train(two_replicas), train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)


@pytest.mark.parametrize("drop_remainder", [False, pytest.param(True, marks=full)])
@pytest.mark.filterwarnings("ignore:It cannot be told whether a loss")
def test_a_sum_over_features_is_no_sum_over_samples(two_replicas, drop_remainder):
    """With equal halves of a batch, each replica's correlations are those of the whole batch."""
    x, y = (np.repeat(values[:16].reshape(4, 4, -1), 2, 0).reshape(32, -1) for values in (X, Y))

    def train(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = Regression(lambda y, p, model: _correlation(y, p), False)
            model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=drop_remainder)
        model.fit(data, verbose=0)
        return model.get_weights()

    for our, their in zip(train(two_replicas), train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)
