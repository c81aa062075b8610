"""Sparse gradients whose rows a step has made unique."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.log_messages import log_messages
from tfdist.engines.processes import OneProcess
from tfdist.step.fixed_rows import summed_apart
from tfdist.step.unique_rows import added_up, are_unique

_TABLE = np.random.default_rng(0).normal(size=[6, 3]).astype("float32")
_WORDS = np.random.default_rng(1).integers(0, 6, [16, 5]).astype("int32")


def _unique(table, x):
    numbers, places = tf.unique(tf.reshape(x, [-1]))
    return tf.reshape(tf.gather(tf.gather(table, numbers), places), [-1, 5, 3])


def _by_keras(table, x):
    """As an `Embedding` of Keras looks rows up."""
    numbers, places = tf.unique(tf.reshape(x, [-1]))
    rows = keras.ops.take(table, tf.cast(numbers, tf.int64), axis=0)
    return tf.reshape(tf.gather(rows, places), [-1, 5, 3])


def _sparse(table, x):
    words = tf.sparse.from_dense(x + 1)
    words = tf.SparseTensor(words.indices, words.values - 1, words.dense_shape)
    return tf.nn.embedding_lookup_sparse(table, words, None, combiner="mean")[:, tf.newaxis]


def _of_words(table, x):
    return tf.gather(table, x)


def _places(table, x):
    """Not the numbers: where they are among the unique ones."""
    _, places = tf.unique(tf.reshape(x, [-1]))
    return tf.reshape(tf.gather(table, places), [-1, 5, 3])


ROWS = {
    "unique": (_unique, True),
    "by Keras": (_by_keras, True),
    "sparse": (_sparse, True),
    "words": (_of_words, False),
    "places": (_places, False),
}


def _gradient(look_up, then):
    """What `then` says of the gradient of a table whose rows are looked up."""
    table, said = tf.Variable(_TABLE), []

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(table, x))
        said.append(then(tape.gradient(loss, table)))

    step.get_concrete_function()
    return said[0]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_unique_if_their_numbers_are(name):
    look_up, expected = ROWS[name]
    assert _gradient(look_up, are_unique) == expected


def test_a_warning_names_unique_rows_where_parts_are_added():
    with pytest.warns(UserWarning, match=r"`Synchronous` joins such rows.*Received: indices"):
        assert isinstance(_gradient(_unique, summed_apart), tf.IndexedSlices)


def test_dense_gradients_and_eager_ones_are_not():
    assert not are_unique(tf.ones([3]))
    assert not are_unique(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0])))


def test_rows_of_one_number_are_added_up():
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([5, 0, 5]), [6, 1])
    found = added_up(rows)
    assert found.indices.numpy().tolist() == [5, 0]
    assert found.values.numpy().tolist() == [[5.0], [2.0]]


class OwnAdam(keras.optimizers.Adam):
    """An optimizer of whose rows no table can be made."""


def _trained(look_up, make, strategy=None):
    """The table after two updates with batches of eight."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        table = keras.Variable(_TABLE)
        optimizer = tfdist.DistributedOptimizer(make()) if strategy else make()
        optimizer.build([table])

    def step(x):
        with tf.GradientTape() as tape:
            found = look_up(table.value, x) * tf.cast(x[..., tf.newaxis] + 1, tf.float32)
            loss = tf.reduce_mean(tf.reduce_mean(tf.square(found - 1.0), axis=[1, 2]))
        optimizer.apply(tape.gradient(loss, [table.value]), [table])

    train = tf.function(lambda x: strategy.run(step, args=(x,)) if strategy else step(x))
    data = tf.data.Dataset.from_tensor_slices(_WORDS).batch(8)
    for batch in strategy.experimental_distribute_dataset(data) if strategy else data:
        train(batch)
    return table.numpy()


@pytest.mark.parametrize("tables", [False, True], ids=["rows", "tables"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
        lambda: keras.optimizers.Adamax(0.01),
        lambda: OwnAdam(0.01),
    ],
    ids=["adam", "clipped", "adamax", "another"],
)
@pytest.mark.parametrize("look_up", [_unique, _of_words], ids=lambda one: one.__name__)
def test_training_equals_one_device(look_up, make, tables, monkeypatch):
    if tables:  # as between processes
        monkeypatch.setattr(OneProcess, "is_alone", property(lambda self: False))
    expected = _trained(look_up, make)
    found = _trained(look_up, make, tfdist.MirroredStrategy(DEVICES[:2]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


class _Unique(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(6, 3))

    def compute_output_shape(self, shape):
        return (*shape, 3)

    def call(self, x):
        return _unique(self.table.value, x)


def _fitted(scope):
    keras.utils.set_random_seed(0)
    with scope:
        inputs = keras.Input([5], dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(_Unique()(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=True)
    model.fit(_WORDS, _WORDS[:, :1].astype("float32"), batch_size=8, epochs=2, verbose=0)
    return model.get_weights()


def test_a_compiled_step_says_why_it_is_not_compiled_as_a_whole():
    expected = _fitted(contextlib.nullcontext())
    with log_messages() as messages:
        found = _fitted(tfdist.MirroredStrategy(DEVICES[:2]).scope())
    assert any("are unique within the batch" in message for message in messages)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
