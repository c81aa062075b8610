"""Which sparse gradients have rows that do not depend on the samples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step.fixed_rows import may_be_fixed, summed_apart

_TABLE = tf.Variable(np.arange(24, dtype="float32").reshape(8, 3))
_NUMBERS = tf.constant(np.arange(40) % 8)  # too large to become a constant of the function
_PLACES = tf.Variable([0, 3, 1])


@tf.function
def _through_a_function(x):
    return tf.range(tf.shape(x)[1])


ROWS = {
    "constants": (lambda x: [0, 2, 1], True),
    "constants of outside": (lambda x: _NUMBERS, True),
    "numbers in a variable": (lambda x: _PLACES, True),
    "as many as a text is long": (lambda x: tf.range(tf.shape(x)[1]), True),
    "as Keras counts them": (lambda x: keras.ops.arange(keras.ops.shape(x)[-1]), True),
    "a length out of several": (lambda x: tf.range(tf.unstack(tf.shape(x))[1]), True),
    "the samples": (lambda x: x, False),
    "made of the samples": (lambda x: tf.cast(x > 3, tf.int32), False),
    "as many as samples": (lambda x: tf.range(tf.shape(x)[0]), False),
    "again for each sample": (lambda x: tf.tile([[0, 1]], [tf.shape(x)[0], 1]), False),
    "as many as there are numbers": (lambda x: tf.range(tf.size(x)), False),
    "by chance": (lambda x: tf.random.uniform([3], 0, 8, tf.int32), False),
    "by chance, of a seed": (
        lambda x: tf.random.stateless_uniform([3], [1, 2], 0, 8, tf.int32),
        False,
    ),
    "of a function, which hides them": (_through_a_function, False),
}


def _gradient(rows, then):
    """What `then` says of the gradient of a table whose rows are looked up."""
    said = []

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def step(x):
        with tf.GradientTape() as tape:
            found = tf.gather(_TABLE, rows(x))
            loss = tf.reduce_sum(found) * tf.cast(tf.reduce_sum(x), tf.float32)
        gradient = tape.gradient(loss, _TABLE)
        assert isinstance(gradient, tf.IndexedSlices)
        said.append(then(gradient))

    step.get_concrete_function()
    return said[0]


@pytest.mark.parametrize("name", ROWS)
def test_rows_may_be_fixed_unless_they_come_from_samples(name):
    rows, is_fixed = ROWS[name]
    assert _gradient(rows, may_be_fixed) == is_fixed


def test_a_dense_gradient_and_an_eager_one_are_not():
    assert not may_be_fixed(tf.ones([3]))
    assert not may_be_fixed(
        tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]), tf.constant([8, 3]))
    )


@pytest.mark.parametrize("name", ["constants", "as many as a text is long", "as Keras counts them"])
def test_distinct_rows_are_added_as_a_table(name):
    found = _gradient(ROWS[name][0], summed_apart)
    assert isinstance(found, tf.Tensor) and found.shape == _TABLE.shape


def test_rows_of_samples_are_added_as_they_are():
    assert isinstance(_gradient(ROWS["the samples"][0], summed_apart), tf.IndexedSlices)


_MAY_BE_TWICE = {
    "constants": lambda x: [0, 1, 0],
    "a variable": lambda x: _PLACES,
    "a choice": lambda x: tf.where([True, True, False], 0, tf.range(3)),
    "rounded": lambda x: tf.cast(tf.range(0.0, 3.0, 0.5), tf.int32),
    "from the end and the start": lambda x: keras.ops.arange(-8, 8),
}


@pytest.mark.parametrize("rows", _MAY_BE_TWICE.values(), ids=_MAY_BE_TWICE)
def test_fixed_rows_that_may_occur_twice_are_refused_where_parts_are_added(rows):
    with pytest.raises(ValueError, match=r"may look up a row twice.*one-hot.*Received: indices"):
        _gradient(rows, summed_apart)


def _length_of_own_texts(x):
    """Each replica's texts are as long as its longest one."""
    return tf.range(tf.shape(tf.RaggedTensor.from_tensor(x, padding=0).to_tensor())[1])


_OWN_ROWS = {
    "the number of the replica": lambda x: [
        tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    ],
    "lengths of own texts": _length_of_own_texts,
}


@pytest.mark.parametrize("rows", _OWN_ROWS.values(), ids=_OWN_ROWS)
def test_rows_that_differ_between_replicas_are_joined(rows):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        table = keras.Variable(np.ones([4, 3], "float32"))
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build([table])
    texts = [[[5, 0, 0]], [[5, 6, 7]]]
    given = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(texts[context.replica_id_in_sync_group])
    )

    @tf.function(input_signature=[given._type_spec])
    def train(x):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table.value, rows(x)))
            optimizer.apply(tape.gradient(loss, [table.value]), [table])

        strategy.run(step, args=(x,))

    train(given)
    first, second = (copy.numpy() for copy in table.value.values)
    np.testing.assert_array_equal(first, second)
    moved = (first != 1).any(axis=1)
    assert moved.tolist() == (
        [True, True, True, False] if rows is _length_of_own_texts else [True, True, False, False]
    )
