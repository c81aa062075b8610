"""Variables in parts: looked up, differentiated, divided and saved as whole ones."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server import partitions
from tfdist.parameter_server.chief import partition_updates

TABLE = np.arange(14.0, dtype="float32").reshape(7, 2)
SIZES = (3, 2, 2)


def _divided():
    return tf.split(tf.constant(TABLE), SIZES)


def _here(values):
    return ["/device:CPU:0"] * len(values)


def _in_parts(next_creator, **kwargs):
    """Makes each variable with 7 rows in parts, as a parameter server strategy does."""
    value = kwargs["initial_value"]
    value = value() if callable(value) else value
    if value.shape.rank != 2 or value.shape[0] != sum(SIZES):
        return next_creator(**kwargs)
    kwargs = {key: kwargs[key] for key in ("dtype", "trainable")}
    parts = [next_creator(initial_value=part, **kwargs) for part in tf.split(value, SIZES)]
    return compat.PartitionedVariable(parts, "table")


def _model(optimizer="sgd"):
    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(7, 2)])
    model.compile(optimizer=optimizer, loss="mse")
    return model


@pytest.fixture
def in_parts():
    with tf.variable_creator_scope(_in_parts):
        yield


@pytest.mark.parametrize("ids", [[[0, 6], [3, 2]], [-1, -7], [], 4], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_are_those_of_the_whole_table(ids, dtype):
    ids = np.array(ids, dtype)
    values = _divided()
    np.testing.assert_array_equal(partitions.lookup(values, _here(values), ids), TABLE[ids])
    whole = [tf.constant(TABLE)]
    np.testing.assert_array_equal(partitions.lookup(whole, _here(whole), ids), TABLE[ids])


@pytest.mark.parametrize("beyond", [7, -8])
@pytest.mark.parametrize("values", [_divided(), [tf.constant(TABLE)]], ids=["parts", "whole"])
def test_ids_outside_of_the_table_are_errors(values, beyond):
    with pytest.raises(tf.errors.InvalidArgumentError):
        partitions.lookup(values, _here(values), [0, beyond])


@tf.function(autograph=False)
def _gradient_by_parts(ids):
    values = _divided()
    with tf.GradientTape() as tape:
        tape.watch(values)
        rows = partitions.lookup(values, _here(values), ids)
        loss = tf.reduce_sum(rows * tf.constant([[1.0], [2.0], [3.0], [4.0]]))
    return partitions.joined(tape.gradient(loss, values))


def test_the_gradient_of_rows_has_those_rows_only():
    ids = tf.constant([6, 0, 6, 4])
    gradient = _gradient_by_parts(ids)
    assert isinstance(gradient, tf.IndexedSlices)
    assert sorted(gradient.indices.numpy()) == [0, 4, 6, 6]
    expected = np.zeros_like(TABLE)
    np.add.at(expected, ids.numpy(), np.array([[1.0], [2.0], [3.0], [4.0]]))
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)


def test_gradients_are_divided_and_joined_again(in_parts):
    parts = partitions.parts_of(keras.Variable(TABLE))
    assert [tuple(part.shape) for part in parts] == [(3, 2), (2, 2), (2, 2)]
    sparse = tf.IndexedSlices(tf.constant(TABLE[:4]), tf.constant([6, 0, 6, 4]), (7, 2))
    for gradient in (tf.constant(TABLE), sparse):
        divided = partitions.split(gradient, parts)
        assert all(isinstance(part, type(gradient)) for part in divided)
        dense = [tf.convert_to_tensor(part) for part in divided]
        np.testing.assert_array_equal(tf.concat(dense, 0), tf.convert_to_tensor(gradient))
        together = partitions.joined(divided)
        np.testing.assert_array_equal(
            tf.convert_to_tensor(together), tf.convert_to_tensor(gradient)
        )


def test_a_gradient_that_is_dense_in_one_part_is_dense():
    sparse = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([1]), tf.constant([2, 1]))
    together = partitions.joined([sparse, tf.constant([[5.0]])])
    np.testing.assert_array_equal(together, [[0.0], [1.0], [5.0]])
    assert partitions.joined([None, None]) is None


def test_parts_stay_the_same_and_have_names_of_their_own(in_parts):
    variable = keras.Variable(TABLE, name="table")
    parts = partitions.parts_of(variable)
    assert all(a is b for a, b in zip(parts, partitions.parts_of(variable)))
    assert [part.path for part in parts] == [f"table/part_{i}" for i in range(3)]
    parts[1].assign(-parts[1])
    np.testing.assert_array_equal(variable.numpy()[3:5], -TABLE[3:5])
    other = keras.Variable([1.0])
    assert partitions.parts_of(other) == [other]


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model.weights.h5"])
def test_files_are_those_of_a_whole_variable(tmp_path, file):
    with tf.variable_creator_scope(_in_parts):
        saved, loaded_in_parts = _model(), _model()
    whole = _model()
    if file.endswith("weights.h5"):
        saved.save_weights(tmp_path / file)
        for model in (whole, loaded_in_parts):
            model.load_weights(tmp_path / file)
    else:
        saved.save(tmp_path / file)
        whole = keras.models.load_model(tmp_path / file, compile=False)
        with tf.variable_creator_scope(_in_parts):
            loaded_in_parts = keras.models.load_model(tmp_path / file, compile=False)
    for model, kind in ((whole, tf.Variable), (loaded_in_parts, compat.PartitionedVariable)):
        assert isinstance(model.weights[0].value, kind)
        np.testing.assert_array_equal(model.get_weights()[0], saved.get_weights()[0])


def test_checkpoints_are_those_of_a_whole_variable(tmp_path):
    with tf.variable_creator_scope(_in_parts):
        saved, restored_in_parts = _model(), _model()
    whole = _model()
    path = tf.train.Checkpoint(model=saved).write(str(tmp_path / "checkpoint"))
    for model in (whole, restored_in_parts):
        assert not np.array_equal(model.get_weights()[0], saved.get_weights()[0])
        tf.train.Checkpoint(model=model).read(path).assert_existing_objects_matched()
        np.testing.assert_array_equal(model.get_weights()[0], saved.get_weights()[0])


class _Centralized(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient - tf.reduce_mean(gradient), variable, learning_rate)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adafactor(),
        keras.optimizers.Lamb(),
        keras.optimizers.Adam(clipnorm=1.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor()),
        _Centralized(),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_optimizers_that_look_at_whole_variables_are_refused(in_parts, optimizer):
    with pytest.raises(ValueError, match="variable_partitioner.*Received:.*embeddings"):
        partition_updates.check_optimizer(optimizer, _model().trainable_variables)


@pytest.mark.parametrize("name", ["adamw", "ftrl", "lion", "nadam"])
def test_elementwise_optimizers_are_taken(in_parts, name):
    optimizer = keras.optimizers.get(name)
    partition_updates.check_optimizer(optimizer, _model().trainable_variables)
    optimizer.global_clipnorm = 1.0
    partition_updates.check_optimizer(optimizer, _model().trainable_variables)


def test_without_partitioned_variables_every_optimizer_is_taken():
    partition_updates.check_optimizer(keras.optimizers.Lamb(), _model().trainable_variables)
