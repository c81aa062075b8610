"""Data of unknown length: the step that runs into their end must not part the replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

EPOCHS = 40  # without the remedy, replicas part in about one epoch of twelve
X = np.random.default_rng(3).normal(size=(10, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).filter(lambda x, y: True)


def compiled(**options) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", **options)
    return model


def counts(model: keras.Model) -> tuple[set[int], set[tuple[int, ...]]]:
    """The updates and the seed's state, as all replicas have them."""
    seed = model.layers[0].seed_generator.state
    local_results = model.distribute_strategy.experimental_local_results
    updates = {int(part.numpy()) for part in local_results(model.optimizer.iterations.value)}
    seeds = {tuple(part.numpy().tolist()) for part in local_results(seed.value)}
    return updates, seeds


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.full),
        {"steps_per_execution": 2},
        pytest.param({"run_eagerly": True}, marks=pytest.mark.full),
    ],
)
def test_replicas_count_what_one_device_counts(strategy, options):
    epochs = 2 if options else EPOCHS
    alone = compiled(**options)
    alone.fit(data(), epochs=epochs, verbose=0)
    with strategy.scope():
        model = compiled(**options)
    model.fit(data(), epochs=epochs, verbose=0)
    model.evaluate(data(), verbose=0)
    assert counts(model) == counts(alone)
