"""Trains with compressed weights, one worker and one parameter server, and writes what came out.

python -m tests.parameter_server.pull_job FILE NAME...
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import compression
from tfdist.parameter_server.chief.pulls import Pulls
from tfdist.parameter_server.pull import PullCodec
from tfdist.parameter_server.reading import Reading
from tfdist.staleness import SSP, Synchronous

# The number of rows of the data, and of a table that is too large to be read whole.
ROWS, TABLE = 64, 9001
_RANDOM = np.random.default_rng(1)
X = _RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = X[:, :1] + 0.3 * X[:, 1:2] ** 2
IDS = _RANDOM.integers(0, TABLE, size=(ROWS, 3))
BY_CHIEF = {"staleness": SSP(1000)}  # nobody ever waits, but the chief asks
WAYS: dict[str, dict] = {
    "own": {},
    "chief": {"accumulation_steps": 2, "compression": compression.FP16(min_bytes=0)},
}
LOSSLESS = compression.TopK(1.0, min_bytes=0)
BF16 = compression.BF16(min_bytes=0)
BF16_WAYS: dict[str, dict] = {"own": {}, "synchronous": {"staleness": Synchronous()}}
INT8, TOPK = compression.Int8(min_bytes=0), compression.TopK(0.3, min_bytes=0)
STOCHASTIC = compression.QSGD(8, norm="max", min_bytes=0)
DRIFT: dict[str, tuple[compression.Compressor, dict]] = {
    "int8, own": (INT8, {}),
    "topk, own": (TOPK, {}),
    "qsgd, chief": (STOCHASTIC, BY_CHIEF),
}
# A compressor, options, and whether one of two layers is frozen.
COUNTED: dict[str, tuple[compression.Compressor | None, dict, bool]] = {
    "int8, own": (compression.Int8(), {}, False),
    "frozen, own": (None, {}, True),
    "topk, chief": (compression.TopK(0.01), BY_CHIEF, False),
    "frozen, chief": (None, BY_CHIEF, True),
}


def small() -> keras.Model:
    """Two layers."""
    layers = [keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def mixed() -> keras.Model:
    """Weights of each kind: trained, read by rows, frozen, and moving averages."""
    x, ids = keras.Input((6,)), keras.Input((3,), dtype="int32")
    frozen = keras.layers.Dense(3000, "tanh", trainable=False)
    normal = keras.layers.BatchNormalization()(keras.layers.Dense(20)(frozen(x)))
    rows = keras.layers.Flatten()(keras.layers.Embedding(TABLE, 2)(ids))
    both = keras.layers.Concatenate()([normal, rows])
    return keras.Model([x, ids], keras.layers.Dense(1)(both))


def data(unknown: bool = False) -> tf.data.Dataset:
    """Batches of x, ids and y."""
    batches = tf.data.Dataset.from_tensor_slices(((X, IDS), Y)).batch(8)
    return batches.filter(lambda *batch: True) if unknown else batches


def trained(strategy, make=small, epochs=3, repeat=1, unknown=False) -> keras.Model:
    """A model that was trained."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    batches = data(unknown).repeat(repeat)
    if make is small:
        batches = batches.map(lambda inputs, y: (inputs[0], y))
    model.fit(batches, epochs=epochs, verbose=0)
    return model


def difference(first, second) -> float:
    """How far two models' weights, or lists of weights, are apart."""
    given = [m.get_weights() if isinstance(m, keras.Model) else m for m in (first, second)]
    return float(max(np.abs(a - b).max() for a, b in zip(*given, strict=True)))


def by_hand(rounded: Callable[[np.ndarray, bool], np.ndarray]) -> list[np.ndarray]:
    """One device: gradients at the weights that a worker has, for exact weights.

    Args:
        rounded: what a worker has, from all weights in one vector, and whether an epoch begins.
    """
    keras.utils.set_random_seed(5)
    model, optimizer = small(), keras.optimizers.SGD(0.05, momentum=0.9)
    weights = model.trainable_variables
    optimizer.build(weights)
    for first in [*range(0, ROWS, 8)] * 3:
        exact = model.get_weights()
        got = rounded(np.concatenate([value.ravel() for value in exact]), first == 0)
        sizes = np.cumsum([value.size for value in exact])[:-1]
        parts = zip(np.split(got, sizes), exact)
        model.set_weights([part.reshape(value.shape) for part, value in parts])
        with tf.GradientTape() as tape:
            error = model(X[first : first + 8]) - Y[first : first + 8]
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, weights)
        model.set_weights(exact)
        optimizer.apply(gradients, weights)
    return model.get_weights()


def as_bf16(values: np.ndarray, begins: bool) -> np.ndarray:
    """Values that are rounded to bfloat16."""
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


class Largest:
    """What a worker has that is sent the largest 30 % of the differences."""

    def __call__(self, values: np.ndarray, begins: bool) -> np.ndarray:
        if begins:
            self.known = values
        else:
            wanted = values - self.known
            largest = np.argsort(-np.abs(wanted))[: int(np.ceil(0.3 * wanted.size))]
            self.known = self.known.copy()
            self.known[largest] += wanted[largest]
        return self.known


def drifts(resolver, compressor: compression.Compressor, options: dict) -> dict:
    """How far a worker's weights were from the real ones in each update, and the last loss."""
    path = pathlib.Path(tempfile.mkdtemp()) / "norms"
    base = type(compressor)

    class Noting(base):  # type: ignore[valid-type, misc]
        """Notes the norm of what is to be sent."""

        def encode(self, gradient, state, step):
            norm = tf.norm(gradient)
            with tf.control_dependencies([tf.print(norm, output_stream=f"file://{path}")]):
                return super().encode(tf.identity(gradient), state, step)

    noting = Noting(**vars(compressor))
    strategy = tfdist.ParameterServerStrategy(resolver, pull_compression=noting, **options)
    model = trained(strategy, epochs=1, repeat=26)
    norm = np.sqrt(sum(np.sum(w**2) for w in model.get_weights()))
    norms = np.array(path.read_text().split(), float) / norm
    found = {"norms": norms.tolist(), "loss": model.evaluate(X, Y, verbose=0)}
    if options:
        there, here = model.train_function._pulls.known[0]
        found["apart"] = float(max(np.abs(there[k].numpy() - here[k].numpy()).max() for k in here))
    return found


def readings(resolver) -> dict:
    """What a worker gets in several readings, of which nothing is used."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    with strategy.scope():
        variables = [keras.Variable(np.zeros(4, "float32"), name=name) for name in ("v", "w")]
    reading = Reading(variables, ["0"], ["1"], ["0"])
    pulls = Pulls(reading, PullCodec(compression.TopK(0.25, min_bytes=0), 0))

    def value(numbers):
        with tf.device(strategy.ps_devices[0]):
            return tf.identity(tf.constant(numbers, tf.float32))

    fixed = value([5, 5, 5, 5])

    def read(numbers):
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            return pulls({"0": value(numbers), "1": fixed}, 0, 1)

    found, kept = {}, []
    for name, numbers in (
        ("first", [1, 2, 3, 4]),
        ("second", [1, 4, 4, 5]),
        ("third", [1, 4, 4, 7]),
    ):
        got = read(numbers)
        found[name] = got["0"].numpy().tolist()
        kept.append(got["1"])
        sides = [of["0"].numpy().tolist() for of in pulls.known[0]]
        found[f"{name}, agree"] = sides[0] == sides[1] == found[name]
    found["devices"] = ["/job:worker" in of.backing_device for of in (got["0"], got["1"])]
    found["copied once"] = all(copy is kept[0] for copy in kept)
    pulls.forget(0)
    got = read([9, 8, 7, 6])
    found["lost"], found["copied again"] = got["0"].numpy().tolist(), got["1"] is not kept[0]
    read([1, 1, 1, 1])
    pulls.begin_run()
    found["new run"] = read([2, 3, 4, 5])["0"].numpy().tolist()
    return found


def bytes_sent(address: str) -> int:
    """What the server at this address has sent."""
    command = ["ss", "-tinH", f"sport = :{address.split(':')[1]}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_sent:(\d+)", text)))


def counted(resolver, compressor, options: dict, frozen: bool) -> dict:
    """The bytes that the parameter server sends for an update; at least, and at most."""
    options = {"snapshot_every": 0, "pull_compression": compressor} | options
    strategy = tfdist.ParameterServerStrategy(resolver, **options)
    with strategy.scope():
        layers = [keras.layers.Dense(500, use_bias=False) for _ in range(2)]
        layers[0].trainable = not frozen
        model = keras.Sequential([keras.Input((500,)), *layers])
        model.compile(keras.optimizers.SGD(0.001), "mse")
    x = np.zeros((32, 500), "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    (address,) = resolver.cluster_spec().as_dict()["ps"]
    before, own = bytes_sent(address), model.train_function.why_chief is None
    calls = _calls(model) if own else 0
    model.fit(x, x, batch_size=1, verbose=0)
    updates = strategy.staleness_report().updates
    sent, calls = bytes_sent(address) - before, _calls(model) - calls if own else 1
    spec = tf.TensorSpec([500 * 500], tf.float32)
    layer = 4 * 500 * 500
    each = layer if compressor is None else compressor.wire_bytes(spec)
    least = each if frozen else 2 * each
    whole = layer if frozen else 2 * layer if compressor else 0  # at the beginning of a call
    return {"sent": sent / updates, "least": least, "most": least + whole * calls / updates}


def _calls(model: keras.Model) -> int:
    """A number that grows by one with each call that makes updates, and with each use of it."""
    return next(model.train_function._kept.ledger._calls)


def _strategy(resolver, pull, **options):
    return tfdist.ParameterServerStrategy(resolver, pull_compression=pull, **options)


def lossless(resolver) -> dict:
    """What a lossless codec changes, by way."""
    found = {}
    for way, options in WAYS.items():
        exact, pulled = (
            trained(_strategy(resolver, pull, **options), mixed) for pull in (None, LOSSLESS)
        )
        reading = pulled.train_function.updates.reading
        found[way] = {
            "difference": difference(exact, pulled),
            "why chief": pulled.train_function.why_chief,
            "coded": sorted(
                reading.parts[int(p)].path for k in reading.coded for p in k.split(",")
            ),
            "fixed": sorted(
                reading.parts[int(p)].path for k in reading.fixed for p in k.split(",")
            ),
        }
    return found


def lossy(resolver) -> dict:
    """Differences to the same by hand, and to training without a codec."""
    exact = trained(_strategy(resolver, None))
    expected = by_hand(as_bf16)
    found = {
        way: difference(trained(_strategy(resolver, BF16, **options)), expected)
        for way, options in BF16_WAYS.items()
    }
    found["exact"] = difference(exact, expected)
    expected = by_hand(Largest())
    found["largest"] = difference(trained(_strategy(resolver, TOPK, **BY_CHIEF)), expected)
    found["largest, exact"] = difference(exact, expected)
    return found


def drift(resolver) -> dict:
    """How far the workers' copies are from the weights; the loss without a codec."""
    found = {name: drifts(resolver, *case) for name, case in DRIFT.items()}
    exact = trained(_strategy(resolver, None), epochs=1, repeat=26)
    return found | {"loss": exact.evaluate(X, Y, verbose=0)}


def said(resolver) -> dict:
    """What is said, and why the chief makes updates."""
    unknown = trained(_strategy(resolver, LOSSLESS), epochs=1, unknown=True)
    with warnings.catch_warnings(record=True) as caught:
        trained(_strategy(resolver, compression.Int8(min_bytes=10**6)), epochs=1)
    return {
        "unknown length": unknown.train_function.why_chief,
        "warnings": [str(warning.message) for warning in caught],
    }


def sent(resolver) -> dict:
    """The bytes of updates."""
    return {name: counted(resolver, *case) for name, case in COUNTED.items()}


def main() -> None:
    """Writes the results of the functions that are named."""
    path, *names = sys.argv[1:]
    with tfdist.cluster.local_cluster(1, 1) as resolver:
        found = {name: globals()[name](resolver) for name in names}
    pathlib.Path(path).write_text(json.dumps(found))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
