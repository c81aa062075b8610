"""What a pipeline cannot do right is refused before training starts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import pipeline

X, Y = np.ones((8, 4), "float32"), np.ones((8, 4), "float32")
layers = keras.layers


def _chain(*inner, **options):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), *inner, layers.Dense(4)])
    return pipeline.stages(model, DEVICES[:2], **options)


def _functional(connect):
    x = keras.Input((4,))
    return pipeline.stages(keras.Model(x, connect(x)), DEVICES[:1])


class _AddsLoss(layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x))
        return x


class _Measures(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.largest = keras.metrics.Mean()

    def call(self, x):
        self.largest.update_state(tf.reduce_max(x))
        return x


def _nested(layer):
    x = keras.Input((4,))
    return keras.Model(x, layer(x))


def _centred(x):
    return x - keras.ops.mean(x, 0, keepdims=True)


def _less(operation, **options):
    return _nested(lambda x: x - operation(x, **options))


OVER_ALL_AXES = {
    "mean": lambda: _less(keras.ops.mean),
    "max": lambda: _less(keras.ops.max),
    "sum": lambda: _less(keras.ops.sum, keepdims=True),
    "std": lambda: _less(keras.ops.std),
    "norm": lambda: _less(keras.ops.norm),
    "logsumexp": lambda: _less(keras.ops.logsumexp),
    "argmax": lambda: _nested(lambda x: x - keras.ops.cast(keras.ops.argmax(x), "float32")),
    "cumsum": lambda: _nested(lambda x: keras.ops.reshape(keras.ops.cumsum(x), (-1, 4))),
    "flip": lambda: _nested(keras.ops.flip),
    "roll": lambda: _nested(lambda x: keras.ops.roll(x, 1)),
    "softmax": lambda: _nested(lambda x: keras.ops.softmax(x, axis=None)),
    "Softmax": lambda: layers.Softmax(axis=None),
    "squeeze": lambda: _nested(lambda x: keras.ops.squeeze(x[:, None])),  # of one sample
}


def _cross(x):
    first = x[:, :3]
    return keras.ops.concatenate([keras.ops.cross(first, 2 * first + 1), x[:, 3:]], axis=1)


WITHIN_SAMPLES = {
    "mean": lambda: _less(keras.ops.mean, axis=-1, keepdims=True),
    "max": lambda: _less(keras.ops.max, axis=1, keepdims=True),
    "cumsum": lambda: _nested(lambda x: keras.ops.cumsum(x, axis=1)),
    "cross": lambda: _nested(_cross),
    "squeeze": lambda: _nested(lambda x: keras.ops.squeeze(x[:, None], axis=1)),
    "relu": lambda: _nested(lambda x: keras.ops.relu(x) * 2 + 1),
    "Normalization": lambda: layers.Normalization(axis=None, mean=0.5, variance=2.0),
}


def _sharing():
    shared = layers.Dense(4)
    return _nested(shared), _nested(shared)


class _OwnModel(keras.Sequential):
    pass


def _residual(x):
    return x + layers.Dense(4)(x)


def _shared(x):
    layer = layers.Dense(4)
    return layer(layer(x))


def _twice(x):
    y = layers.Dense(4)(x)
    return layers.Add()([y, y])


CASES = {
    "BatchNormalization": (lambda: _chain(layers.BatchNormalization()), "weights that are not tra"),
    "a nested one": (
        lambda: _chain(keras.Sequential([layers.BatchNormalization()])),
        "weights that are not trained",
    ),
    "activity regularizer": (
        lambda: _chain(layers.Dense(4, activity_regularizer="l2")),
        "activity regularizer",
    ),
    "adapt": (lambda: _chain(layers.Discretization([0.0])), "may have learned from data"),
    "residual": (lambda: _functional(_residual), "must be a chain"),
    "shared layer": (lambda: _functional(_shared), "must be a chain"),
    "two inputs of a layer": (lambda: _functional(_twice), "must be a chain"),
    "operation": (lambda: _functional(lambda x: layers.Dense(4)(x * 2)), "must be a chain"),
    "two outputs": (
        lambda: _functional(lambda x: [layers.Dense(4)(x), layers.Dense(4)(x)]),
        "takes one output",
    ),
    "axis of samples": (lambda: _chain(layers.UnitNormalization(axis=0)), "along axis 0"),
    "the same from behind": (lambda: _chain(layers.Softmax(axis=-2)), "along axis 0"),
    "an operation": (lambda: _chain(_nested(_centred)), "along axis 0"),
    "one mask": (lambda: _chain(layers.Dropout(0.5, noise_shape=(1, 4))), "one mask for several"),
    "own metric": (lambda: _chain(_Measures()), "metric of its own"),
    "function of TensorFlow": (
        lambda: _chain(layers.Dense(4, activation=tf.nn.silu, name="mine")),
        "makes each layer anew",
    ),
    "a nested lambda": (
        lambda: _chain(_nested(layers.Lambda(lambda x: 2 * x))),
        "makes each layer anew",
    ),
    "a nested class": (lambda: _chain(_nested(_AddsLoss())), "makes each layer anew"),
    "shared by nested models": (lambda: _chain(*_sharing()), "copied twice"),
    "a dict": (lambda: _functional(lambda x: {"a": layers.Dense(4)(x)}), "takes one output"),
    "own class": (
        lambda: pipeline.stages(_OwnModel([keras.Input((4,)), layers.Dense(4)]), DEVICES[:1]),
        "plain `keras.Sequential`",
    ),
    "not built": (
        lambda: pipeline.stages(keras.Sequential([layers.Dense(4)]), DEVICES[:1]),
        "must be built",
    ),
    "too many devices": (
        lambda: pipeline.stages(keras.Sequential([keras.Input((4,)), layers.Dense(4)]), DEVICES),
        "Each stage needs a layer",
    ),
    "one device twice": (
        lambda: pipeline.stages(_plain(), [DEVICES[0]] * 2),
        "different devices of this process",
    ),
    "unknown cut": (lambda: _chain(cuts=["no such layer"]), "names of 1 layers"),
    "cut at the first layer": (
        lambda: pipeline.stages(_plain(), DEVICES[:2], cuts=["first"]),
        "names of 1 layers",
    ),
    "in a scope": (lambda: _in_scope(lambda: _chain()), "outside of `strategy.scope"),
}


def _plain():
    return keras.Sequential([keras.Input((4,)), layers.Dense(4, name="first"), layers.Dense(4)])


def _in_scope(make):
    with tfdist.MirroredStrategy(DEVICES[:1]).scope():
        return make()


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_refused(case):
    make, message = CASES[case]
    with pytest.raises(ValueError, match=f"(?s){message}.*Received: "):
        make()


@pytest.mark.parametrize("operation", OVER_ALL_AXES)
def test_operations_over_all_axes_are_refused(operation):
    with pytest.raises(ValueError, match="along axis 0, that of the samples.*Received: "):
        _chain(OVER_ALL_AXES[operation]())


@pytest.mark.parametrize("operation", WITHIN_SAMPLES)
def test_operations_within_samples_are_not(operation):
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), WITHIN_SAMPLES[operation](), layers.Dense(4)]
    )
    found = pipeline.stages(model, DEVICES[:2], micro_batches=4)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    np.testing.assert_allclose(found(x), model(x), rtol=0, atol=1e-6)


def test_a_pipeline_gets_and_loses_no_layers():
    model = _chain()
    for change, name in ((lambda: model.add(layers.Dense(4)), "add"), (model.pop, "pop")):
        with pytest.raises(ValueError, match=f"call `tfdist.pipeline.stages`.*Received: {name} of"):
            change()
    assert len(model.layers) == 2 and model.predict(X, verbose=0).shape == Y.shape


def _stateful():
    model = keras.Sequential([keras.Input(batch_shape=(8, 4, 1)), layers.LSTM(4, stateful=True)])
    return pipeline.stages(model, DEVICES[:1])


def test_stateful_layers_are_refused():
    with pytest.raises(ValueError, match="keeps a state for each place .*Received: LSTM"):
        _stateful()


def _thawed():
    frozen = layers.BatchNormalization(trainable=False)
    model = _chain(frozen)
    model.layers[1].trainable = True
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _chain(_AddsLoss()), "adds a loss"),
        (_thawed, "weights that are not trained"),
    ],
)
def test_what_shows_in_the_step_is_refused_before_an_update(make, message):
    model = make()
    model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"(?s){message}.*Received: "):
        model.fit(X, Y, verbose=0)
    for first, second in zip(before, model.get_weights()):
        np.testing.assert_array_equal(first, second)


def test_gradients_of_gradients_are_refused():
    model, x = _chain(), tf.constant(X)
    kernel = model.trainable_variables[0].value
    for source in (x, kernel):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model(x) ** 2
            penalty = tf.reduce_sum(inner.gradient(y, source) ** 2)
        with pytest.raises(ValueError, match="first gradients only"):
            outer.gradient(penalty, kernel)


def test_a_strategy_and_xla_are_refused_where_the_model_is_called():
    model = _chain()
    with pytest.raises(ValueError, match="trains with no strategy"):
        _in_scope(lambda: model(X))
    with pytest.raises(ValueError, match="XLA compiles for one device"):
        tf.function(model, jit_compile=True)(tf.constant(X))
    with pytest.raises(ValueError, match="takes no mask"):
        model(X, mask=tf.ones((8,), tf.bool))


def test_keras_compiles_nothing_by_xla():
    model = _chain()
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile
