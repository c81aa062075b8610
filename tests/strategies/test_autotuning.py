"""TensorFlow does not tune what a strategy reads: who deletes an iterator would wait for that."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.tuned_data import recorded
from tfdist.compat.tuning import without_tuning

X = np.ones((10, 2), "float32")
Y = np.ones((10, 1), "float32")
STRATEGIES = {
    "one device": lambda: tfdist.MirroredStrategy(DEVICES[:1]),
    "two devices": lambda: tfdist.MirroredStrategy(DEVICES[:2]),
    "two devices, balanced": lambda: tfdist.MirroredStrategy(DEVICES[:2], balance=True),
}


def pairs():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


def ragged():
    return pairs().map(lambda x, y: (tf.sparse.from_dense(x), y), num_parallel_calls=1)


def with_options(dataset, **options):
    """`dataset` with options by their paths."""
    made = tf.data.Options()
    for path, value in options.items():
        kind, name = path.split("__")
        setattr(getattr(made, kind), name, value)
    return dataset.with_options(made)


def counted():
    return pairs().map(lambda x, y: (x + 1, y))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keras_loops_read_what_is_not_tuned(strategy):
    with STRATEGIES[strategy]().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with recorded() as found:
        model.fit(X, Y, batch_size=4, epochs=2, validation_data=(X, Y), verbose=0)
        model.evaluate(pairs(), verbose=0)
        model.predict(X, batch_size=4, verbose=0)
    assert set(found) == {False}
    assert len(found) >= 6  # at least one for each pass


@pytest.mark.parametrize("make", [pairs, ragged])
def test_own_loops_read_what_is_not_tuned(make):
    strategy = STRATEGIES["two devices"]()
    with recorded() as found:
        next(iter(strategy.experimental_distribute_dataset(make())))
        next(iter(strategy.distribute_datasets_from_function(lambda _: make())))
    assert found == [False] * 6  # one for the host and one for each device


@pytest.mark.parametrize("asked", [{"enabled": True}, {"cpu_budget": 2}, {"ram_budget": 10**9}])
def test_who_asks_for_tuning_gets_it(asked):
    strategy = STRATEGIES["two devices"]()
    data = with_options(pairs(), **{f"autotune__{name}": value for name, value in asked.items()})
    with recorded() as found:
        next(iter(strategy.experimental_distribute_dataset(data)))
    # A device's data set has nothing to tune.
    assert found == [asked.get("enabled"), False, False]


DATA = {
    "a plain map, which tuning makes parallel": (counted, None),
    "below others": (lambda: counted().unbatch().batch(2).prefetch(1), None),
    "in one of several": (lambda: pairs().concatenate(counted()), None),
    "a map that says how parallel it is": (
        lambda: pairs().map(lambda x, y: (x, y), num_parallel_calls=tf.data.AUTOTUNE),
        False,
    ),
    "not made parallel": (
        lambda: with_options(counted(), experimental_optimization__map_parallelization=False),
        False,
    ),
    "not optimized": (
        lambda: with_options(
            counted(), experimental_optimization__apply_default_optimizations=False
        ),
        False,
    ),
    "unknown": (
        lambda: tf.data.experimental.from_variant(
            tf.data.experimental.to_variant(counted()), counted().element_spec
        ),
        None,
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_tuning_stays_where_it_makes_a_map_parallel(kind):
    make, expected = DATA[kind]
    assert without_tuning(make()).options().autotune.enabled is expected


@pytest.mark.parametrize("make", [pairs, counted])
def test_batches_are_the_same(make):
    expected = [x.numpy().tolist() for x, _ in make()]
    assert [x.numpy().tolist() for x, _ in without_tuning(make())] == expected
