"""BroadcastGlobalVariables in one process; see test_ranks for several."""

import keras
import numpy as np
import pytest

from tfdist.callbacks import BroadcastGlobalVariables

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def _model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def test_one_process_keeps_its_weights(strategy):
    model = _model(strategy)
    weights = [np.full((2, 1), 0.5, "float32"), np.array([0.25], "float32")]
    model.set_weights(weights)
    model.fit(X, Y, verbose=0, callbacks=[BroadcastGlobalVariables()])
    for after, before in zip(model.get_weights(), weights):
        np.testing.assert_array_equal(after, before)


def test_plain_keras_is_left_alone():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0, callbacks=[BroadcastGlobalVariables(root_rank=1)])


@pytest.mark.parametrize("root_rank", [-1, 0.0, "0", None, True])
def test_a_root_that_is_no_rank_is_refused(root_rank):
    with pytest.raises(ValueError, match="root_rank` must be an integer >= 0. Received: root_rank"):
        BroadcastGlobalVariables(root_rank)


def test_a_root_that_does_not_exist_is_refused(two_replicas):
    model = _model(two_replicas)
    with pytest.raises(ValueError, match=r"Received: root_rank=1 with 1 process\(es\)"):
        model.fit(X, Y, verbose=0, callbacks=[BroadcastGlobalVariables(1)])
