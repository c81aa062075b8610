"""Sparse gradients between processes: of few rows of a table, and of more rows than it has."""

import keras
import numpy as np
import tensorflow as tf

from tfdist import compression
from tfdist.compression.choice import Choice
from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step.exchange import Packing
from tfdist.step.tables import Tables
from tfdist.step.totals import Totals

ROWS, WIDTH = 6, 3
# The numbers of rows of each replica: none, few, or many; replicas differ.
COUNTS = {"few": (1, 2, 0, 1), "many": (3, 40, 0, 7), "none": (0, 0, 0, 0)}
# What rounds rows, with the dtype; from which update on.
CODERS = {"fp16": "float16", "bf16": "bfloat16"}
START = 3
# By when their rows are rounded.
PATHS = ["late", "whole", "always", "never"]
# What travels: compressors, and the optimizer. One embedding is so small that its table travels.
CODED = {
    "rows": ({"large/*": "fp16", "*": None}, "adam"),
    "table": ({"small/*": compression.PowerSGD(rank=1, min_bytes=0), "*": None}, "sgd"),
}


def sums(here):
    """What `_sums` finds, by what travels in place of rows."""
    return {tables.name: _sums(here, tables) for tables in Tables}


def _sums(here, tables):
    """For each of `COUNTS`: the sums of the rows that came, beside NumPy's; and their numbers."""
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
            return packing.unpack(packing.sum(packing.pack([gradient]), tables))[0]

        return strategy.run(exchanged)

    found = {}
    for name, counts in COUNTS.items():
        given = [_rows(r, counts[r]) for r in range(strategy.num_replicas_in_sync)]
        first = here.rank * here.devices
        own = given[first : first + here.devices]
        result = step(*(part for pair in own for part in pair))
        totals = strategy.experimental_local_results(result)
        found[name] = {
            "found": [_all_sums([(np.asarray(t.values), np.asarray(t.indices))]) for t in totals],
            "numbers": [np.bincount(t.indices, minlength=ROWS).tolist() for t in totals],
            "expected": _all_sums(given),
            "given": np.bincount(np.concatenate([n for _, n in given]), minlength=ROWS).tolist(),
        }
    return found


def _all_sums(given):
    """The sums of rows, of their squares, and of their magnitudes."""
    kinds = {Tables.SUMS: np.positive, Tables.SQUARES: np.square, Tables.MAGNITUDES: np.abs}
    return {
        tables.name: _dense([(kind(values), numbers) for values, numbers in given])
        for tables, kind in kinds.items()
    }


def coded(here):
    """By compressor, number of the update, `COUNTS` and way: the sums of `PATHS` on each replica.

    The ways are whether tables may travel.
    """
    return {
        (name, number, counts, summed): _coded_sums(here, name, number, COUNTS[counts], summed)
        for name in CODERS
        for number in (START - 1, START)
        for counts in COUNTS
        for summed in (True, False)
    }


def _coded_sums(here, name, number, counts, summed):
    strategy = here.strategy
    coder = compression.get(name, min_bytes=0, start_step=START)
    never = compression.get(name, min_bytes=0, error_feedback=True)
    always = compression.get(name, min_bytes=0)
    rules = {"late": coder, "always": always, "never": never, "whole": None}
    specs = [tf.TensorSpec([ROWS, WIDTH])] * len(PATHS)
    tables = Tables.SUMS if summed else Tables.NONE
    with strategy.scope():
        options = Options(compression=Choice.of(rules))
        totals = Totals(options, specs, PATHS, None, lambda: tables)

    # As inputs, since numbers that are constants are taken for the same on all replicas.
    @tf.function(autograph=False)
    def step(*parts):
        def exchanged():
            values, numbers = parts[static_id() % here.devices]
            shape = tf.constant([ROWS, WIDTH], tf.int64)
            gradients = [
                tf.IndexedSlices(factor * values, numbers, shape)
                for factor in range(1, len(PATHS) + 1)
            ]
            packing = totals.packing(gradients, accumulates=False)
            packed = packing.pack(gradients)
            sums = totals.sum(packing, packed, tf.constant(number))
            return [tf.convert_to_tensor(total) for total in sums]

        return strategy.run(exchanged)

    first = here.rank * here.devices
    own = [fractions(first + n, counts[first + n]) for n in range(here.devices)]
    parts = [tuple(map(tf.constant, pair)) for pair in own]
    of_replicas = [strategy.experimental_local_results(total) for total in step(*parts)]
    return [[np.asarray(total) for total in own] for own in zip(*of_replicas)]


def trained_coded(here):
    """By `CODED`, the weights of embeddings."""
    return {name: coded_weights(here.make, name) for name in CODED}


def coded_weights(make, name):
    """The weights of embeddings after two epochs, as lists."""
    choice, optimizer = CODED[name]
    model = embeddings(make(compression=choice), optimizer)
    model.fit(*data(), batch_size=20, epochs=2, shuffle=False, verbose=0)
    return [weight.tolist() for weight in model.get_weights()]


def fractions(replica, count):
    """Rows that half precision does not hold exactly, one of them too large for it; their numbers.

    Large is only what one replica has, so that its sum is the same in each order.
    """
    random = np.random.default_rng(replica)
    values = random.normal(size=(count, WIDTH)).astype("float32")
    if replica == 0 and count:
        values[0, 0] = 1e6
    return values, random.integers(0, ROWS, count)


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
    "clipped adam": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "adam, each number clipped": lambda: keras.optimizers.Adam(0.01, clipvalue=0.001),
    "scaled adam": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "lion": lambda: keras.optimizers.Lion(0.001),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
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
