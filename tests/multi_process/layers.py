"""A model of which each layer has a compressor of its own, for all backends at once."""

import keras
import numpy as np
import tensorflow as tf

from tfdist import compression

COMPRESSORS = [
    compression.FP16(min_bytes=0),
    compression.BF16(min_bytes=0, error_feedback=True),
    compression.Int8(min_bytes=0, rounding="stochastic"),
    compression.QSGD(4, min_bytes=0),
    compression.TernGrad(min_bytes=0),
    compression.SignSGD(min_bytes=0),
    compression.OneBit(min_bytes=0, start_step=2),
    compression.TopK(0.1, min_bytes=0),
    compression.RandomK(0.1, min_bytes=0),
    compression.Threshold(0.01, max_ratio=0.2, min_bytes=0),
    compression.DGC(0.1, momentum=0.0, min_bytes=0),
    compression.PowerSGD(1, min_bytes=0),
]
# The momentum is the compressor's, so it has all layers.
MOMENTUM = [compression.DGC(0.1, min_bytes=0), compression.DGC(1.0)]
# What travels in each way that there is: whole or in bits, gathered or summed, in one round or two.
_WAYS = ("fp16", "bf16", "signsgd", "topk", "randomk", "powersgd")
WAYS = [c for c in COMPRESSORS if c.name in _WAYS]
# Those with a state of their own, and one with error feedback.
STATEFUL = [c for c in COMPRESSORS if c.name in ("signsgd", "dgc", "powersgd")]
# What sees each replica's gradients in a way of its own, where they are accumulated before.
ACCUMULATED = [c for c in COMPRESSORS if c.name in ("fp16", "signsgd", "topk", "dgc", "powersgd")]
_RANDOM = np.random.default_rng(1)
X, Y = _RANDOM.normal(size=(48, 12)), _RANDOM.normal(size=(48, 12))


def choice(compressors: list[compression.Compressor]) -> dict:
    """The option of the strategy."""
    rest = compressors[-1] if compressors[-1].keeps_momentum else None
    return {f"layer{i}/kernel": c for i, c in enumerate(compressors)} | {"*": rest}


def model(strategy: tf.distribute.Strategy, compressors: list, optimizer="sgd") -> keras.Model:
    """The model at its start."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [keras.layers.Dense(12, "tanh", name=f"layer{i}") for i in range(len(compressors))]
        built = keras.Sequential([keras.Input((12,)), *layers], name="net")
        rates = {"sgd": 0.5, "adam": 0.01}
        built.compile(keras.optimizers.get(optimizer), "mse")
        built.optimizer.learning_rate = rates[optimizer]
    return built


def fit(
    built: keras.Model, first: int = 0, last: int = 4, callbacks: tuple = (), batch: int = 24
) -> dict:
    """Trains in the given order, two batches per epoch or more; returns the history."""
    return built.fit(
        X,
        Y,
        batch,
        epochs=last,
        initial_epoch=first,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    ).history


def state(built: keras.Model) -> dict:
    """The weights, and what compressors keep on the first local replica."""
    kept = built.optimizer.compression_state
    return {
        "weights": [w.tolist() for w in built.get_weights()],
        "kept": {key: rows[0].tolist() for key, rows in kept._local_rows().items()},
    }
