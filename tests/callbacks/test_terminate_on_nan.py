"""TerminateOnNaN: it names the step, the variable and the replica; without it training goes on."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES


def _model(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="out")], name="net")
        model.compile("sgd", "mse", **options)
    return model


def _data(bad):
    x, y = np.ones((40, 2), "float32"), np.ones((40, 1), "float32")
    if bad is not None:
        x[bad] = np.inf
    return x, y


@pytest.mark.parametrize("steps_per_execution", [1, 4])
@pytest.mark.parametrize("replica_id", [0, 1])
def test_names_step_variable_and_replica(replica_id, steps_per_execution, two_replicas, caplog):
    model = _model(two_replicas, steps_per_execution=steps_per_execution)
    stop = tfdist.callbacks.TerminateOnNaN()
    x, y = _data(bad=8 * 2 + 4 * replica_id)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[stop])
    assert (3, "net/out/kernel", replica_id) in stop.findings
    assert stop.findings[0][0] == 3
    assert len(history.epoch) == 1
    assert not np.isfinite(model.get_weights()[0]).all()


def test_finite_training_is_left_alone(two_replicas):
    model = _model(two_replicas)
    stop = tfdist.callbacks.TerminateOnNaN()
    history = model.fit(*_data(None), epochs=3, verbose=0, callbacks=[stop])
    assert stop.findings == [] and len(history.epoch) == 3
    assert model.optimizer.gradient_monitor is None


def test_without_it_training_goes_on_as_keras_would(two_replicas):
    model = _model(two_replicas)
    history = model.fit(*_data(5), epochs=2, verbose=0)
    assert len(history.epoch) == 2
    assert np.isnan(model.get_weights()[0]).any()


def test_model_outside_a_scope_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="compiled in the scope.*Received"):
        model.fit(*_data(None), verbose=0, callbacks=[tfdist.callbacks.TerminateOnNaN()])


def test_gradients_of_accumulated_micro_batches_are_watched():
    model = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4))
    stop = tfdist.callbacks.TerminateOnNaN()
    model.fit(*_data(17), batch_size=8, shuffle=False, verbose=0, callbacks=[stop])
    assert stop.findings[0] == (3, "net/out/kernel", 0)
