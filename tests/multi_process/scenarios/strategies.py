"""Several strategies in one process, and what processes cannot exchange."""

import os
import unittest.mock

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process.reference import BATCH, X, Y
from tests.multi_process.scenarios.common import error_of, fit, linear, state
from tfdist import compat
from tfdist.engines import processes
from tfdist.engines.replica_context import static_id
from tfdist.step.exchange import all_reduce
from tfdist.strategies.multi_worker.engine import PAIR_BYTES


def several(here):
    """Two strategies with a model each, which train in turns."""
    models = [linear(here.strategy), linear(here.make(accumulation_steps=2))]
    for _ in range(2):
        for model in models:
            fit(model, epochs=1)
    with models[0].distribute_strategy.scope():
        nested = error_of(_enter, models[1].distribute_strategy)
    return {
        "first": state(models[0]),
        "second": state(models[1]),
        "nested": nested,
        "metrics": [model.evaluate(X, Y, BATCH, verbose=0) for model in models],
    }


def _enter(strategy):
    with strategy.scope():
        pass


def loop_with_changing_sizes(here):
    """A loop of one's own over batches of 16, 5, 1, 16 samples."""
    model = here.model()
    loss = keras.losses.MeanSquaredError()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(value, variables), variables)
        return value

    @tf.function(reduce_retracing=True, autograph=False)
    def train(x, y):
        return here.strategy.reduce("SUM", here.strategy.run(step, args=(x, y)), axis=None)

    def batches():
        for rows in LOOP_ROWS:
            yield X[rows], Y[rows]

    specs = tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32)
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    losses = [float(train(x, y)) for x, y in here.strategy.experimental_distribute_dataset(data)]
    return {"losses": losses, "state": state(model)}


LOOP_ROWS = [list(range(16)), list(range(16, 21)), [21], list(range(22, 38))]


def cannot_be_exchanged(here):
    """The errors of a bfloat16 model and of predictions that are no dense numbers."""
    strategy = here.strategy
    with strategy.scope():
        narrow = keras.layers.Dense(1, dtype="bfloat16")
        bfloat16 = error_of(narrow.build, (None, 4))
        words = keras.Sequential([keras.Input((4,)), _Words()])
        ragged = keras.Sequential([keras.Input((4,)), _Ragged()])
    return {
        "bfloat16": bfloat16,
        "strings": error_of(words.predict, X, BATCH, verbose=0),
        "ragged": error_of(ragged.predict, X, BATCH, verbose=0),
    }


def predictions_of_other_dtypes(here):
    """What a layer gives as bfloat16, bool and int8."""
    found = {}
    for dtype in ("bfloat16", "bool", "int8"):
        with here.strategy.scope():
            model = keras.Sequential([keras.Input((4,)), _Cast(dtype)])
        predictions = model.predict(X, BATCH, verbose=0)
        found[dtype] = (str(predictions.dtype), predictions.astype("float32").tolist())
    return found


class _Cast(keras.layers.Layer):
    def __init__(self, to):
        super().__init__(dtype="float32")
        self._to = to

    def call(self, inputs):
        return keras.ops.cast(inputs, self._to)


class _Words(keras.layers.Layer):
    def call(self, inputs):
        return tf.strings.as_string(inputs)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "string")


class _Ragged(keras.layers.Layer):
    def call(self, inputs):
        return tf.RaggedTensor.from_tensor(inputs)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def halves(replica):
    """What a replica adds: half precision, of sizes that no number of replicas divides."""
    random = np.random.default_rng(replica)
    return [random.normal(size=shape).astype("float16") for shape in ([7], [2, 5], [], [0])]


def sums_of_half_precision(here):
    """The sums of what `halves` gives, and of the replicas between them; and gradients of them."""
    strategy = here.strategy

    def of_replica():
        first, *others = map(tf.constant, halves(static_id()))
        values = [first, tf.constant([static_id()], tf.float32), *others]
        with tf.GradientTape() as tape:
            tape.watch(values)
            sums = all_reduce(values)
            wanted = [tf.reduce_sum(total * (static_id() + 1)) for total in sums[2:4]]
        return sums, tape.gradient(wanted, values[2:4])

    found = tf.function(autograph=False)(lambda: strategy.run(of_replica))()
    sums, gradients = tf.nest.map_structure(
        lambda value: [v.numpy() for v in strategy.experimental_local_results(value)], found
    )
    return {
        "replicas": strategy.num_replicas_in_sync,
        "sums": [(of_all[0].dtype.name, [v.tolist() for v in of_all]) for of_all in sums],
        "gradients": [[v.tolist() for v in of_all] for of_all in gradients],
    }


def broadcasts(here):
    """Arrays of many kinds of the last rank, in pieces of 64 bytes."""
    values = _values(here.rank)
    for value in values:
        value.flags.writeable = False
    with unittest.mock.patch.object(processes, "PIECE_BYTES", 64):
        received = here.strategy.processes.broadcast(values, here.size - 1)
    wanted = _values(here.size - 1)
    return {
        "equal": [
            (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
            for a, b in zip(received, wanted, strict=True)
        ]
    }


def _values(rank):
    random = np.random.default_rng(rank)
    dtypes = ("float64", "float32", "float16", "int64", "uint8", "bool")
    numbers = [random.normal(0, 50, (7, 9)).astype(dtype) for dtype in dtypes]
    half = tf.cast(random.normal(size=33), tf.bfloat16).numpy()
    return [*numbers, half, np.array(rank + 0.5), np.zeros((0, 2)), np.full(3, np.nan)]


def fusion_threshold(here):
    """Up to how many bytes Horovod was told to join tensors, after strategies were made."""
    here.make(bucket_bytes=1)
    return {"bytes": os.environ["HOROVOD_FUSION_THRESHOLD"]}


def orders_of_operations(here):
    """In how many orders TensorFlow runs the collective operations of many tensors."""

    # Two replicas gather smaller tensors.
    size = PAIR_BYTES // 4 + 1

    def exchange_many():
        return all_reduce([tf.ones([size]) for _ in range(3 * compat.OPERATIONS_UNDER_WAY)])

    function = tf.function(lambda: here.strategy.run(exchange_many), autograph=False)
    graph = function.get_concrete_function().graph
    operations = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    return {"operations": len(operations), "orders": len({op.inputs[-1].name for op in operations})}
