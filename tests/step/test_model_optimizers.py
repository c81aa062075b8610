"""The learning rates of a model's optimizers."""

import keras
import pytest

import tfdist
from tfdist.processes.shared_variables import rates
from tfdist.step.model_optimizers import learning_rates

optimizers = keras.optimizers


def test_the_learning_rate_of_an_optimizer():
    optimizer = optimizers.SGD(0.5)
    assert learning_rates(optimizer) == [optimizer.learning_rate]
    assert learning_rates(optimizers.LossScaleOptimizer(optimizer)) == [optimizer.learning_rate]


def test_a_schedule_has_none_that_can_be_set():
    schedule = optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    assert learning_rates(optimizers.SGD(schedule)) == []


@pytest.mark.skipif(not hasattr(optimizers, "MultiOptimizer"), reason="not in this Keras")
@pytest.mark.parametrize("scaled", [False, True])
def test_those_of_all_parts_of_a_multi_optimizer(scaled):
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        parts = [optimizers.Adam(0.01), optimizers.SGD(0.5)]
        chosen = optimizers.OptimizerMap(parts[1], {".*/kernel": parts[0]})
        optimizer = optimizers.MultiOptimizer(chosen)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    expected = [part.learning_rate for part in parts]
    assert learning_rates(model.optimizer) == expected
    assert [id(rate) for rate in rates(model)] == [id(rate.value) for rate in expected]


@pytest.mark.skipif(not hasattr(optimizers, "MultiOptimizer"), reason="not in this Keras")
def test_parts_that_are_not_chosen_yet_have_none():
    assert learning_rates(optimizers.MultiOptimizer(lambda variable: optimizers.SGD(0.1))) == []
