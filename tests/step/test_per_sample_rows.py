"""Rows of a table that a step looks up once for each sample, in batches of a static size."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.step.looked_up import Table
from tfdist.step import replica
from tfdist.step.fixed_rows import may_be_fixed
from tfdist.step.weighting import Share

_TABLE = tf.Variable(np.arange(24, dtype="float32").reshape(8, 3))


def _positions(x):
    return tf.range(tf.shape(x)[1])


def _tiled(x):
    return tf.tile(_positions(x)[tf.newaxis], [tf.shape(x)[0], 1])


PER_SAMPLE = {
    "tiled": _tiled,
    "repeated": lambda x: tf.repeat(_positions(x)[tf.newaxis], tf.shape(x)[0], axis=0),
    "broadcast": lambda x: tf.broadcast_to(_positions(x), tf.shape(x)),
    "filled": lambda x: tf.fill(tf.shape(x), 2),
    "zeros": lambda x: tf.zeros(tf.shape(x), tf.int32),
    "flattened": lambda x: tf.reshape(_tiled(x), [-1]),
    "without negative ones": lambda x: tf.where(_tiled(x) < 0, _tiled(x) + 8, _tiled(x)),
    "behind a first row": lambda x: tf.concat([tf.zeros_like(x[:, :1]), _tiled(x) + 1], axis=1),
}
FIXED = {
    "positions": _positions,
    "as many as samples": lambda x: tf.range(4),
    "with a dimension for the samples": lambda x: _positions(x)[tf.newaxis],
    "one of each two": lambda x: tf.abs(tf.range(4)[:, tf.newaxis] - tf.range(4)),
    "in turn": lambda x: tf.tile(tf.range(3), [2]),
}


def _says_fixed(rows, shape):
    """Whether the rows may be fixed, in a step of as many samples as the static size tells."""
    said = []

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int32)])
    def step(x):
        running = replica.ReplicaStep(0, 2, Share(0.5), own_loop=True, samples=shape[0])
        with replica.publish(running), tf.GradientTape() as tape:
            found = tf.gather(_TABLE, rows(x))
            loss = tf.reduce_sum(found) * tf.cast(tf.reduce_sum(x), tf.float32)
        gradient = tape.gradient(loss, _TABLE)
        with replica.publish(running):
            said.append(may_be_fixed(gradient))

    step.get_concrete_function()
    return said[0]


_SHAPES = [[4, 5], [4, None], [4, 4], [1, 5], [1, None], [None, None]]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_rows_repeated_for_each_sample_are_not_fixed(name, shape):
    assert not _says_fixed(PER_SAMPLE[name], shape)


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("name", FIXED)
def test_a_table_of_positions_is_fixed_whatever_the_sizes(name, shape):
    assert _says_fixed(FIXED[name], shape)


def _trained(rows, optimizer, variable_length, scope=None):
    """The weights after four updates with batches of eight."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x, y = random.integers(0, 6, [16, 5]), random.normal(size=[16, 1])
    data = tf.data.Dataset.from_tensor_slices((x.astype("int32"), y.astype("float32")))
    length = None if variable_length else 5
    data = data.padded_batch(8, padded_shapes=([length], [1]), drop_remainder=True)
    with scope() if scope else tf.name_scope(""):
        inputs = keras.Input([length], dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(Table(rows)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile(optimizer(), "mse")
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def _scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=4.0)


_TRAINED = {
    "tiled": (_tiled, keras.optimizers.Adam, False),
    "zeros": (lambda x: keras.ops.zeros(keras.ops.shape(x), "int32"), keras.optimizers.Adam, False),
    "tiled, with a loss scale": (_tiled, _scaled, False),
    "positions of texts of any length": (_positions, keras.optimizers.Adam, True),
    "tiled to texts of any length": (_tiled, keras.optimizers.Adam, True),
}


@pytest.mark.parametrize("name", _TRAINED)
def test_training_in_batches_of_a_static_size_equals_one_device(name):
    expected = _trained(*_TRAINED[name])
    found = _trained(*_TRAINED[name], scope=tfdist.MirroredStrategy(DEVICES[:2]).scope)
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other, one, atol=1e-6)
