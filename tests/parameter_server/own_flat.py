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


def main():
    """Writes how far the weights are from those of one device."""
    path, servers = sys.argv[1:]
    with tfdist.cluster.local_cluster(1, int(servers)) as resolver:
        strategy = tfdist.ParameterServerStrategy(resolver)
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
    pathlib.Path(path).write_text(json.dumps(found))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
