"""Synchronous steps that drop late parts; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.backups_scenarios import Computed
from tfdist.staleness import Synchronous

BATCH, EPOCHS = 24, 2
# The last batch has one sample, so all of its parts but one are empty.
ROWS = 6 * BATCH + 1
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
_SECONDS = (0.002, 0.04)  # for a sample, by worker

OPTIONS = {
    "two parts": {"staleness": Synchronous(drop=1)},
    "four parts": {"staleness": Synchronous(parts_per_worker=2, drop=1)},
    "accumulation": {"staleness": Synchronous(drop=1), "accumulation_steps": 2},
    "all but one": {"staleness": Synchronous(parts_per_worker=2, drop=3)},
}
SUM = keras.losses.MeanSquaredError(reduction="sum")


@keras.saving.register_keras_serializable("tests")
class Seen(keras.metrics.Metric):
    """Counts how often each sample was trained on."""

    def __init__(self, name="seen", **options):
        super().__init__(name=name, **options)
        self.counts = self.add_variable((ROWS,), "zeros", dtype="int32", name="counts")

    def update_state(self, ids, y_pred=None, sample_weight=None):
        self.counts.assign_add(tf.math.bincount(tf.cast(ids, tf.int32), minlength=ROWS))

    def result(self):
        return tf.reduce_sum(self.counts)


class Slow(keras.Sequential):
    """Sleeps in each step, as long as its worker is slow; worker 1 also until it is let go."""

    sleeps = False

    def __init__(self, layers):
        super().__init__(layers)
        self.seen = Seen()
        self.computed = Computed()
        self.may_go = threading.Event()
        self.may_go.set()

    def train_step(self, data):
        x, y, ids = data
        if self.sleeps:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()

            def sleep(batch, worker):
                self.computed.parts[int(worker)] += 1
                time.sleep(len(batch) * _SECONDS[int(worker)])
                assert worker == 0 or self.may_go.wait(60)
                self.computed.ended[int(worker)] += 1
                return batch

            x = tf.ensure_shape(tf.numpy_function(sleep, [x, worker], x.dtype), x.shape)
        self.seen.update_state(ids)
        return super().train_step((x, y))


class _Steps(keras.callbacks.Callback):
    """Notes the samples of each step; predicts in the middle of an epoch if it is told to."""

    def __init__(self, predicts):
        super().__init__()
        self.steps, self._before, self._predicts = [], 0, predicts

    def on_epoch_begin(self, epoch, logs=None):
        self._before = 0

    def on_train_batch_end(self, batch, logs=None):
        now = self.model.seen.counts.numpy()
        self.steps.append(np.repeat(np.arange(ROWS), now - self._before).tolist())
        self._before = now
        if self._predicts and batch in (1, 4):
            self.model.predict(X[:8], verbose=0)


def model_of(strategy, noisy=False, **options):
    """A model with fixed weights.

    Args:
        strategy: the strategy; None for one device.
        noisy: whether it has statistics of batches, and random numbers.
        **options: those of `compile`.
    """
    with strategy.scope() if strategy else contextlib.nullcontext():
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        if noisy:
            layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=1), *layers]
        model = Slow([keras.Input((3,)), *layers])
        if not noisy:
            shapes = [w.shape for w in model.get_weights()]
            model.set_weights([np.linspace(-1, 1, np.prod(s)).reshape(s) for s in shapes])
        options = {"loss": "mse", **options}
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), **options)
    return model


def data() -> tf.data.Dataset:
    """Numbered samples in batches of which the last one is short."""
    return tf.data.Dataset.from_tensor_slices((X, Y, np.arange(ROWS))).batch(BATCH)


def trained(strategy, noisy=False, predicts=False, **options):
    """What a `fit` comes to, and the samples of each of its steps."""
    model, steps = model_of(strategy, noisy, **options), _Steps(predicts)
    model.sleeps = strategy is not None
    callbacks = [steps, *(strategy.callbacks() if strategy else [])]
    fitted = model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    found = {
        "history": fitted.history,
        "steps": steps.steps,
        "weights": model.get_weights(),
        "seeds": [s.numpy().tolist() for s in model.non_trainable_variables if "seed" in s.path],
        "iterations": int(model.optimizer.iterations.numpy()),
    }
    if strategy is not None:
        found["report"], found["version"] = strategy.staleness_report(), strategy.version
        found["evaluate"] = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
        found["predict"] = model.predict(X, batch_size=BATCH, verbose=0)
    model.computed.wait()
    return found


class _LetsGo(keras.callbacks.Callback):
    """Lets worker 1 go on after a batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.may_go.set()


def held(strategy):
    """A `fit` in which worker 1 finishes nothing, and another one in which it goes on."""
    model, steps = model_of(strategy), _Steps(False)
    model.sleeps = True
    model.may_go.clear()
    model.fit(data(), verbose=0, callbacks=[steps])
    found = {
        "held": (model.computed.parts[1], model.computed.ended[1]),
        "report": strategy.staleness_report(),
        "steps of the first": len(steps.steps),
    }
    model.fit(data(), verbose=0, callbacks=[steps, _LetsGo()])
    model.computed.wait()
    return {**found, "steps": steps.steps, "weights": model.get_weights()}


def refused(resolver):
    """What is said where all parts would be dropped."""
    try:
        tfdist.ParameterServerStrategy(resolver, staleness=Synchronous(drop=2))
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def drop(resolver, folder):
    """What each choice of options comes to."""

    def train(given, **options):
        return trained(tfdist.ParameterServerStrategy(resolver, **given), **options)

    found = {name: train(given) for name, given in OPTIONS.items()}
    found["stopped in the middle"] = train(OPTIONS["two parts"], predicts=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "BatchNormalization without")
        found["noisy"] = train(OPTIONS["four parts"], noisy=True)
    found["sum"] = train(OPTIONS["two parts"], loss=SUM, loss_weights=1 / BATCH)
    found["several steps"] = train(OPTIONS["two parts"], steps_per_execution=3)
    strategy = tfdist.ParameterServerStrategy(resolver, **OPTIONS["two parts"])
    return {"trained": found, "held": held(strategy), "refused": refused(resolver)}
