"""Calls that have not ended when a `fit` has: they keep no worker, and change nothing later.

python -m tests.parameter_server.own_late PATH SERVERS
"""

import json
import os
import pathlib
import sys
import threading

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder
from tests.parameter_server.own_equal import X, Y, dense

WORKERS = 3
PAUSES = [0.0, 0.4, 0.4]


class Failing(Counting):
    """Fails in worker 0, if told to, while the others are in a step."""

    def __init__(self):
        super().__init__(PAUSES)
        self.fails = self.add_weight(shape=(), name="fails", trainable=False, initializer="zeros")

    def check(self, data, worker):
        fails = (tf.convert_to_tensor(self.fails) > 0) & (worker == 0)
        tf.debugging.Assert(tf.logical_not(fails), ["told to fail"])


def _failed(model, data) -> bool:
    model.fails.assign(1.0)
    try:
        model.fit(data, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        return "told to fail" in str(error)
    finally:
        model.fails.assign(0.0)
    return False


def _counts(strategy, model) -> list[int]:
    seen = np.asarray(model.seen)
    counts = [strategy.version, model.optimizer.iterations, model.clock[0], seen.min(), seen.max()]
    return [int(count) for count in counts]


def _threads() -> int:
    """The threads that wait for locks."""
    return sum("_keep" in thread.name for thread in threading.enumerate())


def found(resolver) -> dict:
    """What a `fit` counts after one that has failed, of the same model and of another one."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Failing()
        model.compile(Recorder(1.0))
        other = dense(keras.layers.Dense(5, activation="relu"))
        other.compile("sgd", "mse")
    model.built = True
    data = tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)
    model.fit(data, verbose=0)
    facts = {"why chief": model.train_function.why_chief, "said": [_failed(model, data)]}
    before = _counts(strategy, model)
    model.fit(data, verbose=0)
    facts["same"] = [b - a for a, b in zip(before, _counts(strategy, model))]
    facts["said"].append(_failed(model, data))
    before = strategy.version
    other.fit(X, Y, batch_size=8, verbose=0)
    facts["other"] = [strategy.version - before, int(other.optimizer.iterations)]
    facts["workers"] = sorted(strategy.staleness_report().workers)
    other.evaluate(X, Y, batch_size=8, verbose=0)
    model.fit(data, verbose=0)
    facts["threads"] = _threads()
    return facts


def main() -> None:
    """Writes what was found."""
    path, servers = sys.argv[1:]
    with tfdist.cluster.local_cluster(WORKERS, int(servers)) as resolver:
        pathlib.Path(path).write_text(json.dumps(found(resolver)))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
