"""What replicas get that are grouped by host."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multi_process import layers
from tests.multi_process.scenarios import engines
from tests.step.engines import DTYPES, given
from tfdist import compression
from tfdist.engines.current import between, current, own_number
from tfdist.step.exchange import all_reduce

# In no way a multiple of the number of replicas.
_SIZE = 7


def operations(here):
    """By dtype, what each local replica gets, and what NumPy gives."""
    strategy = _grouped(here)
    return {dtype: _operations(strategy, dtype) for dtype in DTYPES}


def _grouped(here, **options):
    """A strategy whose replicas are grouped by host."""
    return here.make(exchange="hierarchical", **options)


def _operations(strategy, dtype):
    hosts = strategy.engine.hosts
    hosts.smallest = 0
    count, replicas = hosts.between.replicas, strategy.num_replicas_in_sync
    values = tf.constant(_values(replicas, dtype))
    function = tf.function(lambda: strategy.run(_results, args=(values, hosts)), autograph=False)
    parts = {n: strategy.experimental_local_results(v) for n, v in function().items()}
    found = [
        {name: np.asarray(of_replicas[i]) for name, of_replicas in parts.items()}
        for i in range(len(strategy.extended.worker_devices))
    ]
    own = _values(replicas, dtype)
    of_host = [_of_host(host, count, dtype) for host in range(count)]
    total = np.sum([part["vector"] for part in of_host], axis=0).astype(dtype)
    first = hosts.host_id * hosts.replicas
    expected = {
        "sum": own.sum(axis=0).astype(dtype),
        "within": own[first : first + hosts.replicas].sum(axis=0).astype(dtype),
        "rows": np.concatenate(own[:, :2]),
        "all_reduce": total,
        "all_gather": np.concatenate([part["rows"] for part in of_host]),
        "broadcast": of_host[-1]["odd"],
        "all_to_all": np.stack([part["rows"][hosts.host_id] for part in of_host]),
        "reduce_scatter": np.split(total, count)[hosts.host_id],
    }
    return {"found": found, "expected": expected, "hosts": count}


def _values(replicas, dtype):
    """The value of each replica: whole numbers, which every dtype adds exactly."""
    return np.random.default_rng(1).integers(-9, 9, (replicas, _SIZE)).astype(dtype)


def _of_host(host, hosts, dtype):
    """What the replicas of a host hand in for it."""
    return given(host, hosts, dtype)


def _results(values, hosts):
    own = values[int(tf.get_static_value(own_number()))]
    sparse = tf.IndexedSlices(own[:2], tf.constant([0, 1], tf.int64), tf.constant([9], tf.int64))
    total, rows = all_reduce([own, sparse])
    found = {"sum": total, "rows": rows.values, "within": hosts.sum_within(own)}
    with between(hosts):
        engine = current()
        host = int(tf.get_static_value(own_number()))
        parts = {
            name: tf.constant(value)
            for name, value in _of_host(host, engine.replicas, own.dtype.name).items()
        }
        return {
            **found,
            "all_reduce": engine.all_reduce([parts["vector"]])[0],
            "all_gather": engine.all_gather(parts["rows"]),
            "broadcast": engine.broadcast(parts["odd"], root=engine.replicas - 1),
            "all_to_all": engine.all_to_all(parts["rows"]),
            "reduce_scatter": engine.reduce_scatter(parts["vector"]),
        }


def compressed(here):
    """A layer for each compressor, and the monitor's history."""
    return _monitored(here, layers.COMPRESSORS)


def momentum(here):
    """A compressor that has the momentum of all layers."""
    return _monitored(here, layers.MOMENTUM)


def _monitored(here, compressors):
    strategy = _grouped(here, compression=layers.choice(compressors))
    model = layers.model(strategy, compressors)
    history = layers.fit(model, callbacks=(tfdist.callbacks.CompressionMonitor(),))
    last = {name: float(values[-1]) for name, values in history.items()}
    return {"history": last, "on all replicas": _bits(model), **layers.state(model)}


def resumed(here):
    """A training that is saved after two epochs, and one that is not."""
    strategy = _grouped(here, compression=layers.choice(layers.STATEFUL))
    whole = layers.model(strategy, layers.STATEFUL)
    layers.fit(whole)
    model = layers.model(strategy, layers.STATEFUL)
    layers.fit(model, last=2)
    model.save(here.folder / "model.keras")
    here.meet()
    with strategy.scope():
        loaded = keras.models.load_model(here.folder / "model.keras")
    layers.fit(loaded, first=2)
    return {"whole": layers.state(whole), "resumed": layers.state(loaded)}


def from_a_ring(here):
    """Goes on in groups with what was left unsent by replicas that had no groups."""
    ring = here.make(compression=layers.choice(layers.STATEFUL), exchange="ring")
    model = layers.model(ring, layers.STATEFUL)
    layers.fit(model, last=2)
    model.save(here.folder / "model.keras")
    here.meet()
    before = layers.state(model)["kept"]
    strategy = _grouped(here, compression=layers.choice(layers.STATEFUL))
    with strategy.scope():
        loaded = keras.models.load_model(here.folder / "model.keras")
        loaded.optimizer.build(loaded.trainable_variables)
    sums = {"before": _sum_kept(model), "after": _sum_kept(loaded)}
    layers.fit(loaded, first=2)
    return {"before": before, "sums": sums, "on all replicas": _bits(loaded)}


def _sum_kept(model):
    """The sum over all replicas of what compressors keep."""
    processes = model.distribute_strategy.processes
    rows = model.optimizer.compression_state._local_rows()
    return {
        key: processes.sum(tf.constant(np.sum(of_key, axis=0))).numpy()
        for key, of_key in sorted(rows.items())
    }


def trained(here):
    """Weights after batches of which the last one is uneven, by the option `exchange`."""
    found = {}
    for exchange in ("auto", "ring", "hierarchical"):
        strategy = here.make(exchange=exchange)
        if strategy.engine.hosts is not None:
            strategy.engine.hosts.smallest = 0
        model = layers.model(strategy, layers.WAYS, optimizer="adam")
        layers.fit(model, batch=20)
        found[exchange] = {
            "weights": [w.tolist() for w in model.get_weights()],
            "on all replicas": _bits(model),
            "groups": strategy.engine.hosts is not None,
            "by default": isinstance(strategy, tfdist.MultiWorkerMirroredStrategy),
        }
    return found


def gradients_of_sums(here):
    """The gradients of a sum that is made in groups."""
    strategy = _grouped(here)
    strategy.engine.hosts.smallest = 0
    return engines.gradients_in(strategy)


def of_unknown_shape(here):
    """The weights after steps whose gradient has a shape that is known only when they run."""
    strategy = _grouped(here)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), Unknown()])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.zeros((8, 1)), 8, epochs=2, verbose=0)
    return model.get_weights()


class Unknown(keras.layers.Layer):
    """A layer with one long weight, whose gradient TensorFlow cannot see the shape of."""

    def build(self, shape):
        del shape
        self.long = self.add_weight(shape=(8000,), initializer="ones")

    def call(self, inputs):
        @tf.custom_gradient
        def first(weight):
            def gradient(upstream):
                number = tf.size(weight) + 0 * tf.shape(inputs)[0]
                return tf.tile(upstream[None], [number])

            return weight[0], gradient

        return tf.reduce_sum(inputs, axis=1, keepdims=True) * first(tf.convert_to_tensor(self.long))


@dataclasses.dataclass(frozen=True)
class Kept(compression.Compressor):
    """Sends everything, times a state that begins with ones and stays."""

    aggregation = "sum"

    def init(self, spec):
        return {"scale": tf.ones([])}

    def encode(self, gradient, state, step):
        return (gradient * state["scale"],), state

    def decode(self, payload, spec):
        return payload[0]

    def wire_bytes(self, spec):
        return 4 * spec.shape.num_elements()


def with_a_state_that_begins_with_ones(here):
    """The weights after two steps."""
    strategy = _grouped(here, compression=Kept(min_bytes=0))
    model = layers.model(strategy, [Kept(min_bytes=0)])
    layers.fit(model, last=1)
    return model.get_weights()


def _bits(model):
    """The weights on each local replica."""
    strategy = model.distribute_strategy
    parts = [strategy.experimental_local_results(weight.value) for weight in model.weights]
    return [[part.numpy().tobytes() for part in of_replica] for of_replica in zip(*parts)]
