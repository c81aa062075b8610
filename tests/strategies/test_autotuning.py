"""TensorFlow does not tune what a strategy reads: who deletes an iterator would wait for that."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.tuned_data import recorded
from tfdist.parameter_server.data.distributed_data import DistributedData
from tfdist.parameter_server.data.pipelines import OwnPipelines, SerializedDataset

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
    return pairs().map(lambda x, y: (tf.sparse.from_dense(x), y))


def tuned(dataset):
    options = tf.data.Options()
    options.autotune.enabled = True
    return dataset.with_options(options)


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


def test_who_asks_for_tuning_gets_it():
    strategy = STRATEGIES["two devices"]()
    with recorded() as found:
        next(iter(strategy.experimental_distribute_dataset(tuned(pairs()))))
    assert found == [True, False, False]  # a device's data set has nothing to tune


def test_the_chief_of_parameter_servers_reads_what_is_not_tuned():
    with recorded() as found:
        next(iter(DistributedData(pairs(), lambda: None, None)))
    assert found == [False]


@pytest.mark.parametrize(
    "make", [lambda: SerializedDataset(pairs(), 2), lambda: OwnPipelines(lambda _: pairs(), 2)]
)
def test_workers_of_parameter_servers_read_what_is_not_tuned(make):
    with recorded() as found:
        make().open(0, 0, 0, 1)
    assert found == [False]
