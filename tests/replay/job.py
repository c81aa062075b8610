"""Trains under parameter servers with a record: job.py OPTIONS, a JSON object.

Options: "weights", the file that the final weights are saved in; "cluster", true for one in this
process; "parts", into which variables are divided, of as many parameter servers; "fits", the
numbers of epochs and of samples of each `fit`; others are those of the strategy, of which
"staleness" and "compression" are expressions.
"""

import contextlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.environment import REPLAY

# So many products of matrices make a step of worker 1 several times as long as one of others.
SLOW = 2500


@keras.saving.register_keras_serializable("tests")
class SlowOnWorker1(keras.layers.Layer):
    """Takes its time there, and returns its inputs."""

    def call(self, inputs):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        rounds = tf.where(tf.equal(worker, 1), SLOW, 0)
        one = tf.eye(32)
        _, product = tf.while_loop(
            lambda done, _: done < rounds, lambda done, m: (done + 1, m @ one), (0, one)
        )
        return inputs * tf.stop_gradient(product[0, 0])


def build(width=32):
    return keras.Sequential(
        [
            keras.Input((8,)),
            SlowOnWorker1(),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


def data(samples=248):
    x = np.random.normal(size=(samples, 8)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


class LosingWhatIsUnsent(keras.callbacks.Callback):
    """Lets the strategy take all workers as lost in the first epoch; not in a replay."""

    def on_train_batch_end(self, batch, logs=None):
        if REPLAY not in os.environ and self.model.optimizer.iterations < 12:
            for worker in range(3):
                self.model.train_function._push.forget(worker)


def make_strategy(options):
    """Of those of the main program."""
    given = dict(options)
    parts = given.pop("parts", 1)
    if parts > 1:
        partitioners = tf.distribute.experimental.partitioners
        given["variable_partitioner"] = partitioners.FixedShardsPartitioner(parts)
    for name in ("staleness", "compression"):
        # The expressions are the tests' own.
        given[name] = eval(given.get(name, "None"), vars(getattr(tfdist, name)))
    return tfdist.Strategy("parameter_server", **given)


def main(options):
    weights, fits = options.pop("weights"), options.pop("fits")
    local, parts = options.pop("cluster", False), options.get("parts", 1)
    cluster = tfdist.cluster.local_cluster(3, parts) if local else contextlib.nullcontext()
    with cluster as resolver:
        if resolver is not None:
            options["cluster_resolver"] = resolver
        strategy = make_strategy(options)
        keras.utils.set_random_seed(7)
        x, y = data()
        with strategy.scope():
            model = build()
            model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
        losing = [LosingWhatIsUnsent()] if "compression" in options and local else []
        for epochs, samples in fits:
            model.fit(
                x[:samples],
                y[:samples],
                batch_size=8,
                epochs=epochs,
                validation_data=(x[:20], y[:20]),
                callbacks=[*strategy.callbacks(), *losing],
                verbose=0,
            )
        values = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
        np.savez(weights, *values)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
