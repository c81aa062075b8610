"""What the engine of several processes gives each replica, beside what NumPy gives."""

import concurrent.futures
import itertools

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process.scenarios.common import error_of
from tests.step.engines import DTYPES, given, of_replicas, results
from tfdist.engines.current import current
from tfdist.engines.replica_context import static_id
from tfdist.step.exchange import all_reduce
from tfdist.strategies.horovod import under_way
from tfdist.strategies.multi_worker.doubling import sum_by_doubling


def all_operations(here):
    """By dtype, each local replica's results of the engine's operations, and those expected."""
    return _all_operations(here, here.strategy)


def all_operations_of_a_ring(here):
    """The same, where small tensors are not gathered."""
    return _all_operations(here, here.make(exchange="ring"))


def gradients_of_sums(here):
    """As `gradients_in`, by the job's strategy."""
    return gradients_in(here.strategy)


def gradients_in(strategy):
    """On each local replica, the gradient of the square of the sum with regard to its number."""

    def gradient():
        number = tf.constant([1.0, 2.0]) * (static_id() + 1)
        with tf.GradientTape() as tape:
            tape.watch(number)
            (total,) = all_reduce([number])
            square = total * total
        return tape.gradient(square, number)

    step = tf.function(lambda: strategy.run(gradient), autograph=False)
    return [part.numpy() for part in strategy.experimental_local_results(step())]


def small_sums(here):
    """Sums of 8 numbers: eager ones, and those of a dtype that TensorFlow does not gather."""
    strategy = here.strategy

    def total(dtype):
        (found,) = all_reduce([tf.cast(tf.range(8) + static_id(), dtype)])
        return tf.cast(found, tf.float32)

    traced = tf.function(lambda: strategy.run(total, args=("bfloat16",)), autograph=False)
    return {
        name: [part.numpy().tolist() for part in strategy.experimental_local_results(found)]
        for name, found in (
            ("eager", strategy.run(total, args=("float32",))),
            ("bfloat16", traced()),
        )
    }


def empty_sums(here):
    """The shape of a sum of tensors without elements."""
    step = tf.function(lambda: here.strategy.run(lambda: all_reduce([tf.zeros([0, 3])])[0]))
    return here.strategy.experimental_local_results(step())[0].shape.as_list()


# Rows of the ranks; those of further ranks are the first again.
ROWS = ((0, 0), (0, 5), (3, 0), (4, 2))
ODD = np.array([-0.0, np.nan, np.inf, 1e-42, -1.0], np.float32)


def joined_rows(here):
    """The rows of all ranks, of which some have none, and whether each bit has arrived."""
    return [_joined(here, counts) for counts in ROWS]


def rows_of(rank, counts):
    """The values and the indices of a rank's rows."""
    count = counts[rank % len(counts)]
    values = np.tile(ODD, [count, 3]) if rank % 2 else np.full([count, 15], -0.0, np.float32)
    return values, np.arange(count, dtype=np.int64) + rank


def _joined(here, counts):
    values, indices = rows_of(here.rank, counts)

    @tf.function(input_signature=[tf.TensorSpec([None, 15]), tf.TensorSpec([None], tf.int64)])
    def step(values, indices):
        rows = tf.IndexedSlices(values, indices, tf.constant([50, 15], tf.int64))
        (found,) = here.strategy.run(lambda: current().all_reduce([rows]))
        return found.values, found.indices

    return [part.numpy().tobytes().hex() for part in step(values, indices)]


def parts_with_odd_numbers(here):
    """The bits of the parts of all ranks."""
    own = ODD if here.rank % 2 else -ODD
    step = tf.function(
        lambda: here.strategy.run(lambda: current().all_gather_parts(tf.identity(own)))
    )
    return step().numpy().tobytes().hex()


def exchanged_in_turn(here):
    """Parts of sums and gathered parts where hardly any may be under way at a time."""
    before, under_way._MOST_BYTES = under_way._MOST_BYTES, 8
    engine = here.strategy.engine

    def exchanged():
        found = []
        for number in range(6):
            vector = tf.range(8.0) + 10.0 * number + here.rank
            part = engine.reduce_scatter(vector)
            found.append(engine.all_gather_parts(part))
        return tf.stack(found)

    try:
        step = tf.function(lambda: here.strategy.run(exchanged), autograph=False)
        found = step.get_concrete_function()
        others = {o.name for one in found.graph.get_operations() for o in _waited_for(one)}
        return {"sums": found().numpy().tolist(), "waits": len(others)}
    finally:
        under_way._MOST_BYTES = before


def _waited_for(operation):
    """The differences that must be there before an operation runs that does not use them."""
    return [other for other in operation.control_inputs if other.type == "Sub"]


def sums_of_sizes(here):
    """Sums of random numbers by their bytes: their bits, their error, and how they were summed."""
    return [_sum_of(here, size) for size in (4, 32, 8_000, 9_000, 32_000, 40_000, 160_000, 170_000)]


def _sum_of(here, size):
    def summed():
        own = _own(size, static_id())
        with tf.GradientTape() as tape:
            tape.watch(own)
            (total,) = all_reduce([own])
        return total, tape.gradient(total, own)

    step = tf.function(lambda: here.strategy.run(summed), autograph=False).get_concrete_function()
    sums, gradient = step()
    operations = [
        [operation.type, int(tf.get_static_value(operation.inputs[1]))]
        for operation in step.graph.get_operations()
        if operation.type.startswith("Collective")
    ]
    return {
        **_compared(here, size, sums.numpy()),
        "operations": operations[: len(operations) // 2],
        "operations of the gradient": operations[len(operations) // 2 :],
        "gradient": [float(gradient.numpy().min()), float(gradient.numpy().max())],
    }


def _own(size, replica):
    return tf.random.stateless_normal([size // 4], [replica, size])


def _compared(here, size, sums):
    of_replicas = [_own(size, r).numpy() for r in range(here.strategy.num_replicas_in_sync)]
    expected = np.sum(of_replicas, axis=0, dtype=np.float64)
    return {"sums": sums.tobytes().hex(), "error": float(np.abs(sums - expected).max())}


def sums_by_doubling(here):
    """A sum of random numbers, and a number that is summed five times in a loop of the graph."""
    strategy = here.strategy

    def summed(value):
        return sum_by_doubling(strategy, static_id(), value)

    @tf.function
    def five_times():
        number = tf.fill([100], float(here.rank + 1))
        for _ in tf.range(5):
            number = strategy.run(summed, [number])
        return number[-1]

    sums = tf.function(lambda: strategy.run(lambda: summed(_own(400, static_id()))))()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        both = [
            threads.submit(_often_summed, one, number)
            for one, number in ((strategy, 1.0), (here.make(), 100.0))
        ]
    return {
        **_compared(here, 400, sums.numpy()),
        "in a loop": float(five_times()),
        "of two strategies": [one.result() for one in both],
    }


def _often_summed(strategy, number):
    """What is found when a number is summed a hundred times."""

    def summed():
        return sum_by_doubling(strategy, static_id(), tf.fill([4000], number))

    step = tf.function(lambda: strategy.run(summed), autograph=False)
    return sorted({float(n) for _ in range(100) for n in step().numpy()})


def trained_in_small_buckets(here):
    """The weights after training with buckets of 16 KiB, and how far one device's are away."""
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(450, 20)), numbers.normal(size=(450, 1))

    def trained(strategy, callbacks):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            layers = [keras.layers.Dense(width, "relu") for width in (64, 60)]
            model = keras.Sequential([keras.Input((20,)), *layers, keras.layers.Dense(1)])
            model.compile("adam", "mse")
        # The last batch has two samples: most replicas get none.
        model.fit(x, y, batch_size=64, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    strategy = here.make(bucket_bytes=16 * 1024)
    weights = trained(strategy, strategy.callbacks())
    alone = trained(tf.distribute.get_strategy(), [])
    return {"bits": weights.tobytes().hex(), "away": float(np.abs(weights - alone).max())}


def swaps(here):
    """By pair of ranks, what a rank gets from the other one; nothing if it is not in the pair.

    Twice, and by two strategies of the process, as these number their operations together.
    """
    processes = here.strategy.processes
    found = []
    for engine in (here.strategy.engine, here.make().engine, here.strategy.engine):
        for pair in itertools.combinations(range(processes.size), 2):
            own = tf.range(3.0) + 10.0 * processes.rank
            got = engine.pairs.swap(own, pair if processes.rank in pair else None)
            found.append((pair, got.numpy().tolist()))
    return found


def sum_in_a_condition(here):
    """What is raised where each rank decides whether it takes part in a sum."""

    def sum_or_not():
        own = tf.ones([8])
        return tf.cond(tf.random.uniform([]) < 2.0, lambda: all_reduce([own])[0], lambda: own)

    step = tf.function(lambda: here.strategy.run(sum_or_not), autograph=False)
    return error_of(step)


def _all_operations(here, strategy):
    expected = {d: of_replicas(strategy.num_replicas_in_sync, d) for d in DTYPES}
    found = {}
    for dtype in DTYPES:
        function = tf.function(
            lambda dtype=dtype: strategy.run(results, args=(given, dtype)), autograph=False
        )
        parts = {
            name: [np.asarray(v) for v in strategy.experimental_local_results(value)]
            for name, value in function().items()
        }
        first = here.rank * here.devices
        found[dtype] = [
            {
                "found": {name: values[i] for name, values in parts.items()},
                "expected": expected[dtype][first + i],
            }
            for i in range(here.devices)
        ]
    return found
