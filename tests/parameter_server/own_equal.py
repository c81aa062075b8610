"""With one worker, whose updates come in one order: models trained in each of three ways.

python -m tests.parameter_server.own_equal PATH SERVERS CASES
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
from tfdist.compat import row_updates
from tfdist.parameter_server import partitions

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


def dense(*layers):
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])


def _drawing():
    """Random numbers: the same in each way, since they count batches."""
    return dense(keras.layers.Dropout(0.3, seed=3), keras.layers.GaussianNoise(0.1, seed=4))


def _constrained():
    norm = keras.constraints.MaxNorm(0.5)
    return dense(keras.layers.Dense(5, kernel_constraint=norm, kernel_regularizer="l2"))


def _embedding(rows=50):
    ids = keras.Input((3,), dtype="int32")
    rows = keras.layers.Embedding(rows, 4)(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))


def _frozen():
    model = dense(keras.layers.BatchNormalization(), keras.layers.Dense(5))
    model.layers[1].trainable = False
    return model


def _several_rates():
    """A learning rate for kernels, and another one for biases."""
    kernels = {".*/kernel": keras.optimizers.Adam(0.01)}
    others = keras.optimizers.SGD(0.1)
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(others, kernels))


OPTIMIZERS = {
    "several rates": _several_rates,
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5, use_ema=True),
    "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipvalue=0.2),
    "adam, plain": lambda: keras.optimizers.Adam(0.01),
    "adam, norm": lambda: keras.optimizers.Adam(0.01, amsgrad=True, global_clipnorm=0.5),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "warm-up": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.CosineDecay(0.01, 30, warmup_target=0.1, warmup_steps=6)
    ),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.7), clipnorm=0.3
    ),
}
MODELS = {
    "dense": lambda: dense(keras.layers.Dense(5, activation="relu")),
    "drawing": _drawing,
    "batch normalization": lambda: dense(keras.layers.BatchNormalization()),
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
    "dense, warm-up",
    "dense, nadam",
    "batch normalization",
    "embedding, flat",
    "large table in parts",
    "large table in pieces",
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
    "dense, warm-up": ("dense", "warm-up", {}),
    "dense, nadam": ("dense", "nadam", {}),
    "drawing": ("drawing", "adam", {}),
    "batch normalization": ("batch normalization", "sgd", {}),
    "constraint": ("constraint", "adam", {}),
    "embedding": ("embedding", "adam", {}),
    "embedding, flat": ("embedding", "adam, plain", {}),
    "dense, flat": ("dense", "adam, norm", {}),
    "large table": ("table", "sgd", {"copied": 0}),
    "large table in parts": ("table", "sgd", {"copied": 0, "variable_partitioner": _TWO_PARTS}),
    "large table in pieces": (
        "table",
        "adam, plain",
        {"copied": 0, "piece": 4096, "variable_partitioner": _TWO_PARTS},
    ),
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
if hasattr(keras.optimizers, "MultiOptimizer"):  # not in every Keras
    CASES["several rates"] = ("dense", "several rates", {"staleness": tfdist.staleness.InverseLR()})
    SEVERAL_SERVERS += ("several rates",)


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


def _flat(function) -> list[int]:
    """The sizes of the flat variables."""
    if function.why_chief is not None:
        return []
    return [vector.shape[0] for vector in function._kept.flat.vectors]


def _difference(first, second) -> float:
    weights = [np.abs(a - b).max() for a, b in zip(first[1], second[1], strict=True)]
    logs = [np.abs(np.subtract(first[2][key], second[2][key])).max() for key in first[2]]
    assert first[2].keys() == second[2].keys()
    return float(max(weights + logs))


def main() -> None:
    """Writes, for each case, why the chief made the updates, and how far the results differ."""
    found = {}
    path, servers, *names = sys.argv[1:]
    with tfdist.cluster.local_cluster(1, int(servers)) as resolver:
        for name in names:
            case = CASES[name]
            given = {key: value for key, value in case[2].items() if key in OPTIONS}
            copied = case[2].get("copied", partitions._COPIED_BYTES)
            piece = case[2].get("piece", row_updates.LARGE_BYTES)
            with (
                mock.patch.object(partitions, "_COPIED_BYTES", copied),
                mock.patch.object(row_updates, "LARGE_BYTES", piece),
            ):
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
                "flat": _flat(own[0].train_function),
                "iterations": [int(one[0].optimizer.iterations.numpy()) for one in (own, by_chief)],
            }
    pathlib.Path(path).write_text(json.dumps(found))
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()
