"""What workers get whose long vectors are summed by reducers."""

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.step.exchange import all_reduce
from tfdist.strategies.multi_worker.reducers.exchange import PIECE_BYTES
from tfdist.strategies.multi_worker.reducers.exchanges import exchanges_of

DTYPES = ("float32", "float64", "float16")
# Elements: as few as are summed by reducers; several pieces, the last of which one reducer has not.
LENGTHS = (64 * 1024, PIECE_BYTES // 2 + 4099)
_TURNS = 3
# Inputs and outputs of a model whose thin matrices, of PowerSGD, are long enough for reducers.
_WIDE, _NARROW = 4200, 8
LOW_RANK = tfdist.compression.PowerSGD(rank=4)


def values(rank, length, dtype):
    """What a rank adds: whole numbers, which every dtype adds exactly."""
    return np.random.default_rng(rank).integers(-9, 9, length).astype(dtype)


def sums(here):
    """By dtype, the sums of vectors of several lengths, and how many sums the reducers know of."""
    found = {}
    for dtype in DTYPES:
        own = [tf.constant(values(here.rank, length, dtype)) for length in LENGTHS]
        step = tf.function(lambda *vectors: here.strategy.run(all_reduce, [list(vectors)]))
        found[dtype] = [total.numpy() for total in step(*own)]
        again = [total.numpy() for total in step(*own)]
        assert all(map(np.array_equal, found[dtype], again))
    return {"sums": found, "told": _told(here)}


def rounded(here):
    """A sum of halves that is another one if it is rounded after each addition."""
    own = [2048.0, 1.0, 1.0][here.rank]
    step = tf.function(lambda v: here.strategy.run(lambda x: all_reduce([x])[0], [v]))
    return {"sum": step(tf.fill([LENGTHS[0]], tf.constant(own, tf.float16))).numpy()}


def in_loops(here):
    """The sums of a function that ran alone before, in a loop, and the gradient of a sum."""
    strategy, (length, _) = here.strategy, LENGTHS

    @tf.function
    def summed(vector):
        return strategy.run(lambda x: all_reduce([x])[0], [vector])

    @tf.function
    def turns(vector):
        total = tf.zeros_like(vector)
        for turn in tf.range(_TURNS):
            total += summed(vector * tf.cast(turn + 1, tf.float32))
        return total

    def gradient(vector):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = tf.reduce_sum(all_reduce([vector])[0] * (here.rank + 1.0))
        return tape.gradient(loss, vector)

    own = tf.constant(values(here.rank, length, "float32"))
    alone, found = summed(own).numpy(), turns(own).numpy()
    of_sum = tf.function(lambda: strategy.run(gradient, [own]))().numpy()
    return {"alone": alone, "turns": found, "gradient": of_sum}


def expected_in_loops(size):
    """What NumPy gives for `in_loops` with so many ranks."""
    total = sum(values(rank, LENGTHS[0], "float32") for rank in range(size))
    turns = sum(range(1, _TURNS + 1)) * total
    return {"alone": total, "turns": turns, "gradient": np.full(LENGTHS[0], size * (size + 1) / 2)}


def nested(here):
    """The sums of a function that two others call, and that some ranks trace again in the second.

    Rank 0 has other shapes there, as with a short last batch.
    """
    length = LENGTHS[0]

    def summed(rows, factor):
        step = lambda x: all_reduce([tf.reduce_sum(x, axis=0) * factor])[0]  # noqa: E731
        return here.strategy.run(step, [rows])

    @tf.function
    def inner(rows):
        return summed(rows, 1.0)

    @tf.function
    def last(rows):
        return summed(rows, 10.0), inner(rows)

    @tf.function
    def first(rows):
        own = inner(rows)
        return summed(rows, 10.0), own

    last(tf.ones([4, length]))
    totals = first(tf.ones([4 - (here.rank == 0), length]))
    return {"sums": [float(total[-1]) for total in totals]}


def trained(here):
    """The weights of a model whose kernels reducers sum, compressed and not; two strategies."""
    found = {}
    for compression in (None, "fp16"):
        strategy = here.make(compression=compression)
        with strategy.scope():
            model = model_of()
        fit(model)
        found[str(compression)] = model.get_weights()
    return {"weights": found, "engine": type(here.strategy.engine).__name__}


def model_of():
    """A model with two kernels of more than 64 KiB each, in the present scope."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(160, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((160,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=2)
    return model


def fit(model):
    """Two epochs, whose last batch is short."""
    x = np.random.default_rng(1).normal(size=(70, 160)).astype("float32") / 8
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=2, shuffle=False, verbose=0)


def low_rank(here):
    """The weights of a model whose thin matrices reducers sum, and what error feedback keeps."""
    told = _told(here)
    weights, kept = trained_at_low_rank(here.make(compression=LOW_RANK))
    return {"weights": weights, "kept": kept, "told": _told(here) - told}


def trained_at_low_rank(strategy):
    """The weights, and what error feedback keeps on the first replica of this process."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(_NARROW, "tanh"), keras.layers.Dense(_WIDE)]
        model = keras.Sequential([keras.Input((_WIDE,)), *layers])
        model.compile(keras.optimizers.SGD(20.0, momentum=0.5), "mse", steps_per_execution=2)
    x = np.random.default_rng(1).normal(size=(70, _WIDE)).astype("float32")
    model.fit(x, x, batch_size=16, epochs=2, shuffle=False, verbose=0)
    compressed, variables = model.optimizer.compressed, model.trainable_variables
    kept = [] if compressed is None else compressed.residuals(range(len(variables)))
    local = strategy.experimental_local_results
    return model.get_weights(), [local(variable)[0].numpy() for variable in kept]


def _told(here):
    return exchanges_of(here.rank, 2).number
