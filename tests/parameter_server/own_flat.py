"""The model's weights wherever somebody looks while workers train with flat variables.

python -m tests.parameter_server.own_flat PATH SERVERS
"""

import json
import os
import pathlib
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.own_equal import X, Y, dense

# The batches; those before the first bad one; and those before which somebody looks.
BATCHES, LAST, LOOKED_AT = 400, 301, 200


class Finite(keras.layers.Layer):
    """Fails where a sample is no number."""

    def call(self, inputs):
        return tf.debugging.assert_all_finite(inputs, "a bad sample")


def make_model():
    """A model whose weights are flat on each of two servers."""
    keras.utils.set_random_seed(5)
    model = dense(Finite(), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(4))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def make_data(last=BATCHES):
    """Batches of which only the first `last` ones are good."""
    rows = np.arange(4 * BATCHES) % len(X)
    x = X[rows]
    x[4 * last :] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, Y[rows])).batch(4)


class Looking(threading.Thread):
    """Looks at the weights while workers train, but not towards the end."""

    def __init__(self, model):
        super().__init__(daemon=True)
        self.model = model
        self.seen = {}

    def run(self):
        while max(self.seen, default=0) < LOOKED_AT:
            own = getattr(self.model.train_function, "_own", None)
            if own is None or not own.flat.in_use:
                time.sleep(0.001)
                continue
            with own.at_rest() as version:
                self.seen[version] = values(self.model)
            time.sleep(0.02)


def values(model):
    """The weights and the optimizer's state, except for the number of updates."""
    variables = [*model.trainable_variables, *model.optimizer.variables]
    return [v.numpy() for v in variables if v.dtype == "float32"]


def expected(wanted):
    """The values on one device, after each of these numbers of updates."""
    model = make_model()
    found = {}

    def note(batch, logs=None):
        if batch + 1 in wanted:
            found[batch + 1] = values(model)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(make_data().take(max(wanted)), verbose=0, callbacks=[callback])
    return found


class Swapping(keras.callbacks.Callback):
    """Lets a validation have other weights, and puts the trained ones back after it."""

    def on_test_begin(self, logs=None):
        self.trained = self.model.get_weights()
        self.model.set_weights([np.zeros_like(value) for value in self.trained])

    def on_test_end(self, logs=None):
        self.model.set_weights(self.trained)


class Watching(keras.callbacks.Callback):
    """Looks at weights after batches, though it decides nothing there."""

    decides_in_batches = False

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        if batch % 10 == 0:
            self.seen.append(values(self.model)[0].sum().item())


class Nothing(tfdist.staleness.DelayCompensated):
    """Takes a gradient for zero."""

    def compensate(self, gradient, moved, state):
        return 0.0 * gradient


def at_validation(strategy):
    """The losses with weights that are swapped for the validation."""
    with strategy.scope():
        model = make_model()
    data = make_data().take(50)
    return model.fit(
        data, validation_data=data, epochs=3, verbose=0, callbacks=[Swapping()]
    ).history


def in_batches(strategy):
    """How many different weights a callback has seen, and the flat variables."""
    with strategy.scope():
        model = make_model()
    watching, found = Watching(), {}
    for name, callbacks in (("watched", [watching]), ("not watched", [])):
        model.fit(make_data().take(80), verbose=0, callbacks=callbacks)
        own = model.train_function._own or model.train_function._kept
        found[name] = len(own.flat.vectors)
    return found | {"seen": len(set(watching.seen))}


def compensated(resolver):
    """How far weights have moved by gradients that a policy takes for zero."""
    strategy = tfdist.ParameterServerStrategy(resolver, staleness=Nothing())
    with strategy.scope():
        model = make_model()
    before = model.get_weights()
    model.fit(make_data().take(10), verbose=0)
    return max(float(np.abs(a - b).max()) for a, b in zip(before, model.get_weights()))


def after_a_loss(strategy):
    """The values of weights that a snapshot has restored, when the run has ended."""
    with strategy.scope():
        model = make_model()
    model.fit(make_data().take(10), verbose=0)
    own = model.train_function._kept
    own.begin()
    model.set_weights([np.full_like(value, 7.0) for value in model.get_weights()])
    own.lose(0)  # what a snapshot calls when it has restored the variables
    own.end()
    return sorted({float(one) for value in model.get_weights() for one in value.flat})


def main():
    """Writes how far the weights are from those of one device."""
    path, servers = sys.argv[1:]
    with tfdist.cluster.local_cluster(1, int(servers)) as resolver:
        strategy = tfdist.ParameterServerStrategy(resolver)
        more = {
            "at validation": [at_validation(s) for s in (strategy, tf.distribute.get_strategy())],
            "in batches": in_batches(strategy),
            "compensated": compensated(resolver),
            "after a loss": after_a_loss(strategy),
        }
        strategy = tfdist.ParameterServerStrategy(resolver)  # it counts updates from zero
        with strategy.scope():
            model = make_model()
        looking = Looking(model)
        looking.start()
        said = ""
        try:
            model.fit(make_data(LAST), verbose=0)
        except tf.errors.InvalidArgumentError as error:
            said = str(error)
        looking.join(60)
        seen = {**looking.seen, LAST: values(model)}
        wanted = expected({version for version in seen if version})
        found = {
            "said": "a bad sample" in said,
            "why chief": model.train_function.why_chief,
            "flat": [vector.shape[0] for vector in model.train_function._kept.flat.vectors],
            "updates": int(model.optimizer.iterations.numpy()),
            "seen": sorted(looking.seen),
            "differences": {
                version: max(float(np.abs(a - b).max()) for a, b in zip(seen[version], of_one))
                for version, of_one in wanted.items()
            },
        }
    pathlib.Path(path).write_text(json.dumps(found | more))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
