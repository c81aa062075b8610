"""Sparse gradients between processes: of few rows of a table, and of more rows than it has."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.engines.replica_context import static_id
from tfdist.step.exchange import Packing

ROWS, WIDTH = 6, 3
# The numbers of rows of each replica: none, few, or many; replicas differ.
COUNTS = {"few": (1, 2, 0, 1), "many": (3, 40, 0, 7), "none": (0, 0, 0, 0)}


def sums(here):
    """For each of `COUNTS`: the sum of all replicas, beside NumPy's; and how many rows came."""
    strategy = here.strategy
    spec = tf.TensorSpec([ROWS, WIDTH])

    specs = [tf.TensorSpec([None, WIDTH]), tf.TensorSpec([None], tf.int64)] * here.devices

    @tf.function(input_signature=specs, autograph=False)
    def step(*parts):
        def exchanged():
            place = 2 * (static_id() % here.devices)
            values, numbers = parts[place : place + 2]
            gradient = tf.IndexedSlices(values, numbers, tf.constant([ROWS, WIDTH], tf.int64))
            packing = Packing([gradient], [spec], 0)
            return packing.unpack(packing.sum(packing.pack([gradient]), True))[0]

        return strategy.run(exchanged)

    found = {}
    for name, counts in COUNTS.items():
        given = [_rows(r, counts[r]) for r in range(strategy.num_replicas_in_sync)]
        first = here.rank * here.devices
        own = given[first : first + here.devices]
        result = step(*(part for pair in own for part in pair))
        totals = strategy.experimental_local_results(result)
        found[name] = {
            "found": [np.asarray(tf.convert_to_tensor(total)) for total in totals],
            "rows": [int(tf.size(total.indices)) for total in totals],
            "expected": _dense(given),
        }
    return found


def _rows(replica, count):
    random = np.random.default_rng(replica)
    values = random.integers(-9, 9, (count, WIDTH)).astype("float32")
    return values, random.integers(0, ROWS, count)


def _dense(given):
    total = np.zeros((ROWS, WIDTH), "float32")
    for values, numbers in given:
        np.add.at(total, numbers, values)
    return total


def trained(here):
    """By optimizer, the weights of two embeddings, of which one is smaller than its gradient."""
    found = {}
    for name in OPTIMIZERS:
        model = embeddings(here.strategy, name)
        model.fit(*data(), batch_size=20, epochs=2, shuffle=False, verbose=0)
        found[name] = [weight.tolist() for weight in model.get_weights()]
    return found


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "clipped sgd": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def embeddings(strategy, name):
    """A model of two embeddings."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        words = keras.Input((12,), dtype="int32")
        small = keras.layers.Embedding(5, 4, name="small")(words % 5)
        large = keras.layers.Embedding(3000, 4, name="large")(words)
        joined = keras.layers.Flatten()(keras.layers.Concatenate()([small, large]))
        model = keras.Model(words, keras.layers.Dense(1)(joined))
        model.compile(OPTIMIZERS[name](), "mse")
    return model


def data():
    """Numbers of words, and targets; the last batch is uneven."""
    random = np.random.default_rng(2)
    return random.integers(0, 3000, (50, 12)), random.normal(size=(50, 1))
