"""AutoGraph converts tfdist's part of a loop of one's own without a word."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.log_messages import log_messages


@pytest.mark.parametrize("local", [None, tfdist.LocalSGD(steps=2)], ids=["together", "apart"])
def test_nothing_is_said_of_autograph(local):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], local=local)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    marked = step if local is None else tfdist.local_step(step)

    @tf.function
    def train(x):
        strategy.run(marked, args=(x,))

    data = tf.data.Dataset.from_tensor_slices(np.ones((8, 3), "float32")).batch(4)
    with log_messages() as messages:
        for x in strategy.experimental_distribute_dataset(data):
            train(x)
    if local is not None:
        optimizer.finish_round()
    assert not [message for message in messages if "AutoGraph" in message]
