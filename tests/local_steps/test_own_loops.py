"""Which functions are training steps, and what is said of others."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Loop:
    """A model, its optimizer, and a step that notes whether it runs in a graph."""

    def __init__(self, local):
        self.strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local)
        with self.strategy.scope():
            self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        self.in_graphs = []

    def build(self):
        with self.strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        return self

    def step(self, x, y):
        self.in_graphs.append(not tf.executing_eagerly())
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self.model(x, training=True))
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def batches(self):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        return self.strategy.experimental_distribute_dataset(data)


@pytest.mark.parametrize("local", [None, tfdist.LocalSGD(2)])
def test_a_marked_step_may_be_inside_of_a_function(local):
    loop = Loop(local).build()
    step = tf.function(tfdist.local_step(loop.step, loop.model))
    for batch in loop.batches():
        loop.strategy.run(step, args=batch)
    loop.optimizer.finish_round()
    assert all(loop.in_graphs)
    assert int(loop.optimizer.iterations.numpy()) == 2


def test_a_decorator_of_a_marked_step_is_called():
    loop, called = Loop(None).build(), []
    marked = tfdist.local_step(loop.step, loop.model)

    @functools.wraps(marked)
    def decorated(x, y):
        called.append(True)
        return marked(x, y)

    run = tf.function(lambda x, y: loop.strategy.run(decorated, args=(x, y)))
    for batch in loop.batches():
        run(*batch)
    assert called


def test_a_decorator_takes_the_mark_away():
    loop = Loop(tfdist.LocalSGD(2)).build()
    marked = tfdist.local_step(loop.step, loop.model)
    decorated = functools.wraps(marked)(lambda x, y: marked(x, y))
    run = tf.function(lambda x, y: loop.strategy.run(decorated, args=(x, y)))
    with pytest.raises(ValueError, match="an optimizer that is applied in another function"):
        run(*next(iter(loop.batches())))


def test_an_optimizer_that_was_built_outside_of_the_scope_is_refused():
    loop = Loop(tfdist.LocalSGD(2))
    loop.optimizer.build(loop.model.trainable_variables)
    step = tfdist.local_step(loop.step, loop.model)
    run = tf.function(lambda x, y: loop.strategy.run(step, args=(x, y)))
    with pytest.raises(ValueError, match="must be built in the strategy's scope"):
        run(*next(iter(loop.batches())))


def test_what_reads_weights_within_a_round_is_warned_of_once(caplog):
    loop = Loop(tfdist.LocalSGD(3)).build()
    step = tfdist.local_step(loop.step, loop.model)
    train = tf.function(lambda x, y: loop.strategy.run(step, args=(x, y)))
    evaluate = tf.function(lambda x, y: loop.strategy.run(loop.model, args=(x,)))

    def warnings():
        return [r for r in caplog.records if "within a round of local steps" in r.getMessage()]

    batches = list(loop.batches())
    loop.strategy.run(lambda x, y: None, args=batches[0])
    assert not warnings()
    for batch in batches:
        train(*batch)
        evaluate(*batch)
        loop.strategy.run(lambda x, y: None, args=batch)
    assert len(warnings()) == 1
