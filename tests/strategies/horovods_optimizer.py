"""Leaves Horovod's own DistributedOptimizer in place; prints the errors, as JSON.

python -m tests.strategies.horovods_optimizer
"""

import json

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf

import tfdist

X = np.ones((8, 4), "float32")
FOUND = {}


def build(strategy, optimizer, policy="float32"):
    with strategy.scope():
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        keras.config.set_dtype_policy("float32")
        if optimizer is not None:
            model.compile(optimizer(), "mse")
    return model


def sgd():
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


def adam():
    return hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), backward_passes_per_step=2)


def scaled():
    return keras.optimizers.LossScaleOptimizer(sgd())


def custom_loop(strategy, optimizer):
    model = build(strategy, None)
    with strategy.scope():
        optimizer = optimizer()
        optimizer.build(model.trainable_variables)

    @tf.function
    def train(x):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        strategy.run(step, args=(x,))

    train(X)


def wrapped(strategy):
    with strategy.scope():
        tfdist.DistributedOptimizer(sgd())


def attribute(strategy):
    model = build(strategy, lambda: "sgd")
    with strategy.scope():
        model.second = sgd()
    model.fit(X, X[:, :1], verbose=0)


CASES = {
    "compile": lambda strategy: build(strategy, sgd),
    "adam": lambda strategy: build(strategy, adam),
    "scaled": lambda strategy: build(strategy, scaled),
    "mixed precision": lambda strategy: build(strategy, sgd, "mixed_float16"),
    "wrapped": wrapped,
    "attribute": attribute,
    "custom loop": lambda strategy: custom_loop(strategy, sgd),
}


def main():
    tfdist.testing.virtual_devices(2)
    hvd.init()
    for name in ("horovod", "mirrored"):
        strategy = tfdist.Strategy(name)
        for case, run in CASES.items():
            if case == "custom loop" and strategy.num_replicas_in_sync == 1:
                continue  # nothing is exchanged
            try:
                run(strategy)
                FOUND[f"{case}, {name}"] = None
            except Exception as error:
                FOUND[f"{case}, {name}"] = f"{type(error).__name__}: {error}"
    model = build(tfdist.Strategy("horovod"), lambda: keras.optimizers.SGD(0.1))
    model.fit(X, X[:, :1], verbose=0)
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
