"""Updates that fail, or of which only some servers have made their parts.

python -m tests.parameter_server.own_failing PATH SERVERS
"""

import json
import os
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.own_equal import X, Y, dense
from tfdist.parameter_server.own_updates import ledger, part_of_update


class Finite(keras.Model):
    """Fails where a sample is no number."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(tf.debugging.assert_all_finite(x, "a bad sample"))


def _failed(resolver) -> dict:
    """The counts after a step has failed, and after a `fit` that follows."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Finite()
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, epochs=4, verbose=0)  # calls get longer
    bad = X.copy()
    bad[8:16] = np.nan  # the second batch of a call
    found = {}
    try:
        model.fit(bad, Y, batch_size=8, shuffle=False, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        found["said"] = "a bad sample" in str(error)
    found["why chief"] = model.train_function.why_chief
    for name, fit in (("failed", lambda: None), ("after", lambda: model.fit(X, Y, batch_size=8))):
        fit()
        counts = [strategy.version, model.optimizer.iterations.numpy()]
        found[name] = [*map(int, counts), strategy.staleness_report().updates]
    return found


def _only_begun(own) -> dict:
    """An update of which nothing was made but that it was noted as begun."""
    counts = own.ledger._counts
    with tf.device(own.ledger.device):
        before = counts.read_value().numpy()
        begun = np.array(before)
        begun[0, 1] += 1
        counts.assign(begun)
    is_unfinished = own.ledger.unfinished() is not None
    with own.at_rest() as version:
        after = counts.read_value().numpy()
    return {
        "unfinished": is_unfinished,
        "as before": bool((before == after).all()),
        "version": version == own._strategy.version,
    }


def _half_made(resolver) -> dict:
    """An update fails when only one server has made its part: what training has come to then."""
    apply = part_of_update.PartOfUpdate.apply

    def failing(self, key, numbers):
        if not tf.executing_eagerly() and self._device.endswith("task:1/device:CPU:0"):
            with tf.device(self._device):
                # The third update of the call; nothing but the first server was that far.
                is_whole = tf.not_equal(key % ledger.MOST, 2) | tf.logical_not(fails)
                checked = tf.debugging.Assert(is_whole, ["half"])
            with tf.control_dependencies([checked]):
                key = tf.identity(key)
        return apply(self, key, numbers)

    strategy = tfdist.ParameterServerStrategy(resolver)
    with tf.device(strategy.ps_devices[1]):
        fails = tf.Variable(True)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = dense(keras.layers.Dense(5, activation="relu"))
        model.compile("adam", "mse")
    alone = keras.models.clone_model(model)
    alone.compile("adam", "mse")
    alone.set_weights(model.get_weights())
    found = {}
    with mock.patch.object(part_of_update.PartOfUpdate, "apply", failing):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
        try:
            model.fit(data.repeat(), steps_per_epoch=200, verbose=0)
        except tf.errors.InvalidArgumentError as error:
            found["said"] = "half" in str(error)
    fails.assign(False)
    made = found["made"] = int(model.optimizer.iterations.numpy())
    alone.fit(data.repeat(), steps_per_epoch=made, verbose=0)
    found["counted"] = [strategy.version, strategy.staleness_report().updates]
    weights = zip(model.get_weights(), alone.get_weights())
    found["to one device's"] = max(float(np.abs(a - b).max()) for a, b in weights)
    model.fit(data, verbose=0)
    found["after"] = [strategy.version - made, int(model.optimizer.iterations.numpy()) - made]
    found["only begun"] = _only_begun(model.train_function._kept)
    return found


def main() -> None:
    """Writes what came of each."""
    path, servers = sys.argv[1:]
    with tfdist.cluster.local_cluster(1, int(servers)) as resolver:
        found = {"error": _failed(resolver)}
        if int(servers) > 1:
            found["half"] = _half_made(resolver)
    pathlib.Path(path).write_text(json.dumps(found))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
