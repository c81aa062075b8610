"""StragglerMonitor: it names the slowest replica, and what the others wait for."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

X = np.arange(40.0, dtype="float32")[:, None]


class Delay(keras.layers.Layer):
    """Sleeps where inputs are negative."""

    def call(self, inputs):
        def sleep(batch):
            if batch.min() < 0:
                time.sleep(0.05)
            return batch

        return tf.ensure_shape(tf.numpy_function(sleep, [inputs], inputs.dtype), inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


def _model(strategy, *layers, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-3), "mse", **options)
    return model


def _data(slow):
    """Batches of 8 for two replicas, of which one has negative inputs."""
    x = X.copy().reshape(5, 2, 4, 1) + 1
    x[:, slow] *= -1
    return x.reshape(40, 1)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
def test_the_slowest_replica_is_named(slow, options, two_replicas, capsys):
    model = _model(two_replicas, Delay(), **options)
    monitor = tfdist.callbacks.StragglerMonitor()
    data = tf.data.Dataset.from_tensor_slices((_data(slow), X)).batch(8)
    history = model.fit(data, epochs=2, verbose=2, callbacks=[monitor]).history
    assert history["slowest_replica"] == [slow, slow]
    assert all(0 < waiting <= 1 for waiting in history["waiting"])
    for seconds in monitor.seconds:
        assert seconds[slow] > seconds[1 - slow] > 0
        assert seconds[slow] > 0.049  # in each of the steps that were made
    out = capsys.readouterr().out
    assert out.count(f"Replica {slow} computes") == 2
    assert "of the step." in out


def test_weights_are_those_without_it(two_replicas):
    weights = []
    for callbacks in ([], [tfdist.callbacks.StragglerMonitor()]):
        keras.utils.set_random_seed(0)
        model = _model(two_replicas)
        model.fit(X, X, batch_size=9, epochs=2, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    assert all((a == b).all() for a, b in zip(*weights))


def test_nothing_is_measured_after_training(two_replicas):
    model = _model(two_replicas)
    monitor = tfdist.callbacks.StragglerMonitor()
    model.fit(X, X, batch_size=8, verbose=0, callbacks=[monitor])
    assert two_replicas.clock is None
    history = model.fit(X, X, batch_size=8, verbose=0).history
    assert list(history) == ["loss"]
    assert len(monitor.seconds) == 1


def test_one_replica_waits_for_nobody():
    model = _model(tfdist.MirroredStrategy(["CPU:0"]))
    monitor = tfdist.callbacks.StragglerMonitor()
    history = model.fit(X, X, batch_size=8, verbose=0, callbacks=[monitor]).history
    assert list(history) == ["loss"]


def test_a_model_without_a_strategy_of_tfdist_is_refused():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a model that was made in the scope"):
        model.fit(X, X, verbose=0, callbacks=[tfdist.callbacks.StragglerMonitor()])
