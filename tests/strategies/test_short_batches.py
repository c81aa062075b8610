"""A batch that is shorter than others stays a batch, wherever it comes."""

import functools
import itertools
import pathlib
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def samples(x=X):
    return tf.data.Dataset.from_tensor_slices((x, Y))


def data():
    """Batches of 4, 4 and 2 samples."""
    return samples().batch(4)


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory()


def lines():
    """Batches of 4, 4 and 2 samples, out of a file."""
    path = pathlib.Path(_folder().name) / "lines"
    path.write_text("".join(f"{','.join(map(str, row))}\n" for row in np.hstack([X, Y])))
    read = tf.data.TextLineDataset([str(path)])
    rows = read.map(lambda line: tf.strings.to_number(tf.strings.split(line, ",")))
    return rows.map(lambda row: (tf.ensure_shape(row, [4])[:3], row[3:])).batch(4)


KINDS = {
    "in order": data,
    "repeated": lambda: data().repeat(2),
    "endless": lambda: data().repeat(),
    "shuffled": lambda: data().shuffle(3, seed=1).repeat(3),
    "concatenated": lambda: data().concatenate(data()),
    "without the first": lambda: data().repeat(2).skip(1).take(4),
    "filtered": lambda: data().repeat(2).filter(lambda x, y: tf.shape(x)[0] > 0),
    "cached and read ahead": lambda: data().cache().repeat(2).prefetch(1),
    "with options": lambda: data().repeat(2).with_options(tf.data.Options()),
    "of two sizes": lambda: data().concatenate(samples().batch(3)),
    "padded": lambda: samples().padded_batch(4).repeat(2),
    "whole ones only": lambda: samples().batch(4, drop_remainder=True).repeat(2),
    "mapped": lambda: data().repeat(2).map(lambda x, y: (x + 1.0, y)),
    "ragged": lambda: samples(tf.RaggedTensor.from_tensor(X)).batch(4).repeat(2),
    "of a file": lambda: lines().repeat(2),
    "sparse": lambda: data().map(lambda x, y: (tf.sparse.from_dense(x), y)).repeat(2),
}


def with_policy(name, made):
    """`made`, with the auto-shard policy `name`."""
    options = tf.data.Options()
    policy = getattr(tf.data.experimental.AutoShardPolicy, name)
    options.experimental_distribute.auto_shard_policy = policy
    return made.with_options(options)


def dense(x):
    if isinstance(x, tf.RaggedTensor):
        return x.to_tensor().numpy()
    return (tf.sparse.to_dense(x) if isinstance(x, tf.SparseTensor) else x).numpy()


def global_batches(strategy, made):
    """The inputs of the first batches of `made`, put together again."""
    for x, _ in itertools.islice(strategy.experimental_distribute_dataset(made), 7):
        parts = [dense(part) for part in strategy.experimental_local_results(x)]
        yield np.concatenate([part for part in parts if len(part)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["AUTO", "OFF"])
def test_replicas_get_parts_of_the_batches_of_one_device(strategy, policy, kind):
    expected = [dense(x) for x, _ in KINDS[kind]().take(7)]
    found = list(global_batches(strategy, with_policy(policy, KINDS[kind]())))
    assert [len(x) for x in found] == [len(x) for x in expected]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def results(strategy, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], **options)
    made = {kind: with_policy("OFF", KINDS[kind]()) for kind in KINDS}
    history = model.fit(
        made["endless"],
        epochs=3,
        steps_per_epoch=4,
        validation_data=made["concatenated"],
        shuffle=False,
        verbose=0,
    ).history
    return [
        *model.get_weights(),
        *history.values(),
        model.evaluate(made["repeated"], verbose=0),
        model.predict(made["shuffled"], verbose=0),
    ]


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"steps_per_execution": 2}, marks=pytest.mark.full)]
)
def test_short_batches_in_the_middle_are_trained_as_on_one_device(strategy, options):
    expected = results(tf.distribute.get_strategy(), **options)
    for ours, theirs in zip(results(strategy, **options), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_end_of_data_without_end_is_not_looked_for(two_replicas):
    distributed = two_replicas.experimental_distribute_dataset(KINDS["endless"]())
    assert distributed.cardinality == tf.data.INFINITE_CARDINALITY


def test_data_that_are_not_in_batches_are_refused(two_replicas):
    with pytest.raises((ValueError, IndexError)):
        two_replicas.experimental_distribute_dataset(tf.data.Dataset.range(4))


def test_batches_of_balanced_replicas_stay_what_they_are():
    balanced = tfdist.MirroredStrategy(DEVICES[:2], balance=True)
    expected = results(tf.distribute.get_strategy())
    for ours, theirs in zip(results(balanced), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
