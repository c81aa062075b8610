"""Scenarios of steps and single batches; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import Counting, sleep
from tfdist.compat import outside_stateless_scope
from tfdist.parameter_server.data.batch import Batch
from tfdist.replay.log import read
from tfdist.staleness import Bounded, StalenessPolicy

_RANDOM = np.random.default_rng(1)
_X = _RANDOM.normal(size=(30, 4)).astype("float32")
_Y = _X.sum(axis=1, keepdims=True)


def _linear(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse", metrics=["mae"], **options)
    return model


class _PredictsBatches(keras.callbacks.Callback):
    """Predicts for a batch in the middle of training."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.predict_on_batch(_X)


def _refusal(function) -> str:
    """What the error says that `function` raises."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def single_batches(resolver, folder) -> dict[str, dict[str, Any]]:
    """What single batches and whole runs give, by what the model has done before."""
    found = {}

    def fit(model, **options):
        model.fit(_X, _Y, batch_size=5, verbose=0, **options)

    def several(model):
        model.compile("sgd", loss="mse", metrics=["mae"], steps_per_execution=2)

    done = {
        "nothing": lambda model: None,
        "predict": lambda model: model.predict(_X, verbose=0),
        "evaluate": lambda model: model.evaluate(_X, _Y, verbose=0),
        "fit, validated": lambda model: fit(model, validation_data=(_X, _Y)),
        "fit, predicting": lambda model: fit(model, callbacks=[_PredictsBatches()]),
        "compile, several steps per call": several,
    }
    for name, before in done.items():
        model = _linear(tfdist.ParameterServerStrategy(resolver))
        before(model)

        def single(model=model):
            return [model.predict_on_batch(_X), model.test_on_batch(_X, _Y)]

        found[name] = {
            "before": single(),
            "whole": [
                model.predict(_X, batch_size=8, verbose=0),
                model.evaluate(_X, _Y, batch_size=30, verbose=0),
            ],
            "after": single(),
            "train_on_batch": _refusal(lambda model=model: model.train_on_batch(_X, _Y)),
        }
    return found


class _PredictsOnce(keras.callbacks.Callback):
    """Predicts in each epoch, after its first batch; counts the batches that have ended."""

    def __init__(self):
        super().__init__()
        self.ended = 0

    def on_train_batch_end(self, batch, logs=None):
        self.ended += 1
        if batch == 0:
            self.model.predict(_X, verbose=0)


class Seeing(Counting):
    """Can predict as well."""

    def call(self, x):
        return x


def predicting_within_accumulation(resolver, folder) -> dict[str, Any]:
    """What two epochs with two batches to an update were made of, with `predict` in each."""
    tfdist.ParameterServerStrategy(resolver)  # data sets are made in its cluster
    found = {}
    batches = tf.data.Dataset.range(48).batch(4)
    cases = {
        "finite": ("dynamic", batches, None),
        "finite, static": ("static", batches, None),
        "unknown length": ("dynamic", batches.filter(lambda batch: True), None),
        "endless": ("dynamic", batches.repeat(), 12),
        "finite, some steps": ("dynamic", batches, 6),
    }
    for name, (kind, data, steps) in cases.items():
        strategy = tfdist.ParameterServerStrategy(resolver, input=kind, accumulation_steps=2)
        with strategy.scope():
            model = Seeing([0.0, 0.0])
            model.compile("sgd")
        model.built = True
        once = _PredictsOnce()
        history = model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0, callbacks=[once])
        found[name] = {
            "updates": strategy.version,
            "samples": history.history["counted"],
            "batches": once.ended,
        }
    return found


class _PredictsWithin(keras.callbacks.Callback):
    """Predicts in the middle of an evaluation."""

    def on_test_batch_end(self, batch, logs=None):
        if batch in (2, 3):
            self.model.predict(_X, verbose=0)


def predicting_within_evaluation(resolver, folder) -> list[list[float]]:
    """What `evaluate` gives without and with a callback that predicts."""
    model = _linear(tfdist.ParameterServerStrategy(resolver))
    return [
        model.evaluate(_X, _Y, batch_size=3, verbose=0, callbacks=callbacks)
        for callbacks in ([], [_PredictsWithin()])
    ]


class _SlowOnOne(keras.Model):
    """Predicts; on worker 0 that takes some time."""

    def predict_step(self, data):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return data + tf.cast(sleep(tf.where(tf.equal(worker, 0), 0.2, 0.0)), data.dtype)


class _ReadAhead(keras.callbacks.Callback):
    """Notes how many batches are read that no call has asked for."""

    def __init__(self, read):
        super().__init__()
        self.read = read
        self.most = 0

    def on_predict_batch_end(self, batch, logs=None):
        self.most = max(self.most, int(self.read) - (batch + 1))


def reading_ahead(resolver, folder) -> dict[str, Any]:
    """How far workers read ahead, of which one is slow, and their predictions."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    read = tf.Variable(0, dtype=tf.int64)
    with strategy.scope():
        model = _SlowOnOne()
        model.compile()
    data = tf.data.Dataset.range(1000).map(lambda number: read.assign_add(1)[None] - 1)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    data, ahead = data.with_options(options), _ReadAhead(read)
    predicted = model.predict(data, steps=12, verbose=0, callbacks=[ahead])
    return {"ahead": ahead.most, "predicted": predicted.tolist()}


def overflow(resolver, folder) -> dict[str, int]:
    """What was counted, and recorded, of a training whose first steps overflow."""
    record = folder / "record"
    strategy = tfdist.ParameterServerStrategy(resolver, record=record)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            inner = keras.optimizers.SGD(0.01)
            model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**24), "mse")
        model.fit(_X, _Y, batch_size=2, epochs=2, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    used = [used for fit in read(record).fits for run in fit.runs for used in run.used]
    return {
        "steps": len(used),
        "recorded": sum(one.action == "update" for one in used),
        "recorded version": used[-1].version,
        "version": strategy.version,
        "reported": strategy.staleness_report().updates,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


class Rescaling(keras.Model):
    """Another worker's update changes the loss scale between the loss and its gradient."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.weight * data[0])
        scale = self.optimizer.unwrap().dynamic_scale
        with outside_stateless_scope():
            scale.value.assign(scale.value * 4.0)
        self.optimizer.apply([tape.gradient(loss, self.weight.value)], [self.weight])
        return {}


def rescaling(resolver, folder) -> float:
    """What a weight was changed by, of which the gradient is 1."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Rescaling()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)))
    model.built = True
    model.fit(tf.data.Dataset.from_tensors(tf.ones(1)), verbose=0)
    return -float(model.weight.value)


class Assigning(keras.Model):
    """Assigns to a variable that is no number."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.flag = self.add_weight(shape=(), dtype="bool", initializer="zeros", trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.flag.assign(tf.constant(True))
        return super().train_step(data)


def assigning(resolver, folder) -> dict[str, Any]:
    """Where what a worker assigns is, once its step is done, and the variable in the end."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Assigning()
        model.compile("sgd", "mse")
    model.fit(_X, _Y, batch_size=5, verbose=0)
    function = model.train_function
    batch = Batch(0, 0, (tf.constant(_X[:5]), tf.constant(_Y[:5])))
    with tf.device("/job:worker/replica:0/task:0"):
        seeds = [seed.numpy() for seed in function.step.seeds]
        pushed = function._on_worker(function.values, seeds, batch, None, True)
    places = [value.device for value in pushed.assigned.values()]
    return {"places": places, "variable": model.flag.value.device, "value": bool(model.flag.value)}


class _Halves(StalenessPolicy):
    """Halves all learning rates."""

    def learning_rate_factor(self, staleness):
        return 0.5


def logged(resolver, folder) -> dict[str, Any]:
    """What comes into History and TensorBoard, and the reports, by policy."""
    found = {}
    policies = {"drop": [Bounded(0), _Halves()], "wait": [Bounded(2, "wait"), _Halves()]}
    for name, policy in policies.items():
        strategy = tfdist.ParameterServerStrategy(resolver, staleness=policy, input="dynamic")
        with strategy.scope():
            model = Counting([0.3, 0.0])
            model.compile(keras.optimizers.SGD(0.25))
        model.built = True
        board = keras.callbacks.TensorBoard(folder / name)
        callbacks = [*strategy.callbacks(), board]
        data = tf.data.Dataset.range(48).batch(4)
        history = model.fit(data, verbose=0, callbacks=callbacks).history
        (events,) = (folder / name / "train").glob("events*v2")
        scalars = {
            value.tag.removeprefix("epoch_"): float(tf.make_ndarray(value.tensor))
            for event in tf.compat.v1.train.summary_iterator(str(events))
            for value in event.summary.value
            if value.tensor.dtype == tf.float32.as_datatype_enum
        }
        found[name] = {name: values[-1] for name, values in history.items()}, scalars
        found[f"{name}, report"] = strategy.staleness_report()
    return found


def shares(resolver, folder) -> dict[str, list[int]]:
    """How many steps a slow and a fast worker make, by who reads the data."""
    found = {}
    for kind in ("static", "dynamic"):
        strategy = tfdist.ParameterServerStrategy(resolver, input=kind)
        with strategy.scope():
            model = Counting([0.3, 0.0])
            model.compile("sgd")
        model.built = True
        model.fit(tf.data.Dataset.range(48).batch(4), verbose=0)
        workers = strategy.staleness_report().workers
        found[kind] = [workers[worker].histogram.total() for worker in (0, 1)]
    return found
