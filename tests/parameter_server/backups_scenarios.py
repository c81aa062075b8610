"""Synchronous steps with a slow worker; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

import collections
import contextlib
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.staleness import Synchronous

_X = np.random.default_rng(0).normal(size=(24 * 6 + 5, 3)).astype("float32")
_Y = _X.sum(axis=1, keepdims=True)
_SECONDS = (0.002, 0.04)  # for a sample, by worker

POLICIES = {
    "even": Synchronous(),
    "parts": Synchronous(parts_per_worker=2),
    "backup": Synchronous(backup=True),
    "parts and backup": Synchronous(parts_per_worker=2, backup=True),
}


class Computed:
    """Which worker computed how many parts; Keras would make an own kind of a model's dicts."""

    def __init__(self):
        self.parts = collections.Counter()
        self.ended = collections.Counter()

    def wait(self):
        """Waits for parts that nobody needs any more.

        Keras' `clear_session` would wait for them too, but without letting their Python code run.
        """
        while self.parts != self.ended:
            time.sleep(0.01)


class Slow(keras.Sequential):
    """Sleeps in each step, as long as its worker is slow."""

    sleeps = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.computed = Computed()

    def train_step(self, data):
        x, y = data
        if self.sleeps:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()

            def sleep(batch, worker):
                self.computed.parts[int(worker)] += 1
                time.sleep(len(batch) * _SECONDS[int(worker)])
                self.computed.ended[int(worker)] += 1
                return batch

            x = tf.ensure_shape(tf.numpy_function(sleep, [x, worker], x.dtype), x.shape)
        return super().train_step((x, y))


class _Predicts(keras.callbacks.Callback):
    """Predicts in the middle of an epoch, which ends a run while a worker still computes."""

    def on_train_batch_end(self, batch, logs=None):
        if batch in (1, 4):
            self.model.predict(_X[:8], verbose=0)


def trained(strategy, stops=False):
    """What two calls of `fit` come to.

    Args:
        strategy: a strategy of a parameter server; None for one device.
        stops: whether a callback predicts, for which the training stops.
    """
    with strategy.scope() if strategy else contextlib.nullcontext():
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        model = Slow([keras.Input((3,)), *layers])
        shapes = [w.shape for w in model.get_weights()]
        model.set_weights([np.linspace(-1, 1, np.prod(s)).reshape(s) for s in shapes])
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    model.sleeps = strategy is not None
    data = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(24)
    redundant = collections.Counter()
    for _ in range(2):
        callbacks = [_Predicts()] if stops else []
        history = model.fit(data, verbose=0, callbacks=callbacks).history
        if strategy is not None:
            for worker, report in strategy.staleness_report().workers.items():
                redundant[worker] += report.redundant
    model.computed.wait()
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "loss": history["loss"][-1],
        "iterations": int(model.optimizer.iterations.numpy()),
        "updates": strategy.version if strategy else None,
        "redundant": [redundant[0], redundant[1]],
        "slow parts": model.computed.parts[1],
        "all parts": model.computed.parts.total(),
    }


def backups(resolver, folder):
    """What each policy comes to."""

    def train(policy, **options):
        return trained(tfdist.ParameterServerStrategy(resolver, staleness=policy), **options)

    found = {name: train(policy) for name, policy in POLICIES.items()}
    found["stopped in the middle"] = train(Synchronous(backup=True), stops=True)
    return found
