"""With one worker, whose updates come in one order: models trained in each of three ways.

python -m tests.parameter_server.own_equal PATH SERVERS
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
from tfdist.parameter_server import partitions
from tfdist.parameter_server.own_updates import ledger, part_of_update

ROWS = 52
_RANDOM = np.random.default_rng(1)
X = _RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = (_RANDOM.uniform(size=(ROWS, 1)) > 0.5).astype("float32")
IDS = _RANDOM.integers(0, 50, size=(ROWS, 3))


class AtRest(keras.callbacks.Callback):
    """Must see weights at rest after each batch, so that the chief makes the updates."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.get_weights()


class NoMetrics(keras.Model):
    """A step that returns nothing."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {}


class Two(keras.Model):
    """Applies two optimizers in turn."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(1)
        self.other = keras.optimizers.Adam(0.02)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        for optimizer, layer in ((self.optimizer, self.first), (self.other, self.second)):
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def _dense(*layers):
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])


def _drawing():
    """Random numbers: the same in each way, since they count batches."""
    return _dense(keras.layers.Dropout(0.3, seed=3), keras.layers.GaussianNoise(0.1, seed=4))


def _constrained():
    norm = keras.constraints.MaxNorm(0.5)
    return _dense(keras.layers.Dense(5, kernel_constraint=norm, kernel_regularizer="l2"))


def _embedding(rows=50):
    ids = keras.Input((3,), dtype="int32")
    rows = keras.layers.Embedding(rows, 4)(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))


def _frozen():
    model = _dense(keras.layers.BatchNormalization(), keras.layers.Dense(5))
    model.layers[1].trainable = False
    return model


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5, use_ema=True),
    "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipvalue=0.2),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.7), clipnorm=0.3
    ),
}
MODELS = {
    "dense": lambda: _dense(keras.layers.Dense(5, activation="relu")),
    "drawing": _drawing,
    "batch normalization": lambda: _dense(keras.layers.BatchNormalization()),
    "constraint": _constrained,
    "embedding": _embedding,
    "table": lambda: _embedding(9001),
    "frozen": _frozen,
    "no metrics": NoMetrics,
    "two optimizers": Two,
}
SEVERAL_SERVERS = (
    "dense, sgd",
    "dense, adam",
    "dense, schedule",
    "dense, decay",
    "batch normalization",
    "large table in parts",
    "policy",
    "two optimizers",
    "mixed precision",
    "pulled differences",
)
OPTIONS = ("pull_compression", "staleness", "input", "accumulation_steps", "variable_partitioner")
_TWO_PARTS = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
CASES = {
    "dense, sgd": ("dense", "sgd", {}),
    "dense, adam": ("dense", "adam", {}),
    "dense, schedule": ("dense", "schedule", {}),
    "dense, decay": ("dense", "decay", {}),
    "drawing": ("drawing", "adam", {}),
    "batch normalization": ("batch normalization", "sgd", {}),
    "constraint": ("constraint", "adam", {}),
    "embedding": ("embedding", "adam", {}),
    "large table": ("table", "sgd", {"copied": 0}),
    "large table in parts": ("table", "sgd", {"copied": 0, "variable_partitioner": _TWO_PARTS}),
    "frozen": ("frozen", "sgd", {}),
    "no metrics": ("no metrics", "sgd", {}),
    "policy": ("dense", "sgd", {"staleness": tfdist.staleness.InverseLR()}),
    "endless": ("dense", "sgd", {"steps": 5}),
    "unknown length": ("dense", "adam", {"unknown": True}),
    "two optimizers": ("two optimizers", "sgd", {}),
    "dynamic": ("dense", "sgd", {"input": "dynamic"}),
    "mixed precision": ("dense", "sgd", {"dtype": "mixed_bfloat16"}),
    "scaled loss": ("dense", "sgd", {"dtype": "mixed_float16"}),
    "pulled differences": (
        "frozen",
        "sgd",
        {"pull_compression": tfdist.compression.TopK(1.0, min_bytes=0)},
    ),
    "accumulation": ("dense", "sgd", {"accumulation_steps": 2}),
}


def _data(model: str, steps: int | None, unknown: bool) -> tf.data.Dataset:
    x = {"embedding": IDS, "table": IDS * 180}.get(model, X)
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)
    if steps:
        data = data.repeat()
    return data.filter(lambda *batch: True) if unknown else data


def _trained(strategy, case, callbacks):
    name, optimizer, options = case
    keras.utils.set_random_seed(5)
    keras.config.set_dtype_policy(options.get("dtype", "float32"))
    with strategy.scope() if strategy else tf.distribute.get_strategy().scope():
        model = MODELS[name]()
        own_step = isinstance(model, (NoMetrics, Two))
        model.compile(OPTIMIZERS[optimizer](), *([] if own_step else ["mse", None, ["mae"]]))
    steps = options.get("steps")
    data = _data(name, steps, options.get("unknown", False))
    history = model.fit(
        data, epochs=3, steps_per_epoch=steps, verbose=0, callbacks=callbacks
    ).history
    logs = {key: values for key, values in history.items() if not key.startswith("staleness")}
    return model, model.get_weights(), logs


def _difference(first, second) -> float:
    weights = [np.abs(a - b).max() for a, b in zip(first[1], second[1], strict=True)]
    logs = [np.abs(np.subtract(first[2][key], second[2][key])).max() for key in first[2]]
    assert first[2].keys() == second[2].keys()
    return float(max(weights + logs))


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
        model = _dense(keras.layers.Dense(5, activation="relu"))
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
    """Writes, for each case, why the chief made the updates, and how far the results differ."""
    found = {}
    servers = int(sys.argv[2])
    with tfdist.cluster.local_cluster(1, servers) as resolver:
        for name in CASES if servers == 1 else SEVERAL_SERVERS:
            case = CASES[name]
            given = {key: value for key, value in case[2].items() if key in OPTIONS}
            copied = case[2].get("copied", partitions._COPIED_BYTES)
            with mock.patch.object(partitions, "_COPIED_BYTES", copied):
                own, by_chief = (
                    _trained(tfdist.ParameterServerStrategy(resolver, **given), case, callbacks)
                    for callbacks in ([], [AtRest()])
                )
            # Keras alone cannot do the first two, and counts the end of the third as a step.
            alone = name not in ("accumulation", "no metrics", "unknown length")
            device = _trained(None, case, []) if alone else by_chief
            found[name] = {
                "why chief": own[0].train_function.why_chief,
                "why chief, at rest": by_chief[0].train_function.why_chief,
                "to the chief's": _difference(own, by_chief),
                "to one device's": _difference(own, device),
                "iterations": [int(one[0].optimizer.iterations.numpy()) for one in (own, by_chief)],
            }
        found["error"] = _failed(resolver)
        if servers > 1:
            found["half"] = _half_made(resolver)
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
