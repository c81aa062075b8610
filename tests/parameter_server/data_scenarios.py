"""Scenarios of the order of data; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist

ROWS = 20
IDS = np.arange(ROWS)
_X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
_Y = _X[:, :1].copy()


class Coded(keras.Model):
    """Logs the samples of each batch, as the sum of 2 to the power of their numbers."""

    def __init__(self, slow_worker: int | None):
        super().__init__()
        self.slow_worker = slow_worker
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y, ids = data
        if self.slow_worker is not None:
            x *= _after_a_while(self.slow_worker)
        code = tf.reduce_sum(tf.pow(2, tf.cast(ids, tf.int32)))
        return {**super().train_step((x, y)), "code": code}


def _after_a_while(worker: int) -> tf.Tensor:
    """One, which takes its time on a worker."""
    present = tf.distribute.coordinator.experimental_get_current_worker_index()
    rounds = tf.where(tf.equal(present, worker), 2000, 0)
    one = tf.eye(32)
    _, product = tf.while_loop(
        lambda done, _: done < rounds, lambda done, m: (done + 1, m @ one), (0, one)
    )
    return product[0, 0]


class _Predicts(keras.callbacks.Callback):
    """Predicts in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.predict(_X, verbose=0)


class _Batches(keras.callbacks.Callback):
    """Notes the samples of each batch of each epoch."""

    def __init__(self):
        super().__init__()
        self.epochs: list[list[list[int]]] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        code = int(logs["code"])
        self.epochs[-1].append([row for row in range(ROWS) if code >> row & 1])


def _fitted(strategy, data, slow_worker=None, **options) -> list[list[list[int]]]:
    """The samples of each batch of each epoch, in the middle of which a callback predicts."""
    with strategy.scope():
        model = Coded(slow_worker)
        model.compile("sgd", "mse")
    batches = _Batches()
    model.fit(data, verbose=0, epochs=2, callbacks=[batches, _Predicts()], **options)
    return batches.epochs


def _rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((_X, _Y, IDS))


def data_orders(resolver, folder) -> dict[str, list]:
    """The batches of epochs of shuffled data, without a seed."""
    tf.random.set_seed(None)
    found = {}
    # A third array is for the weights of samples, which Keras hands to `train_step`.
    others = {"y": _Y, "sample_weight": IDS, "batch_size": 2}
    for kind in ("dynamic", "static"):
        strategy = tfdist.ParameterServerStrategy(resolver, input=kind)
        found[f"{kind}, arrays"] = _fitted(strategy, _X, **others)
    shuffled = _rows().shuffle(ROWS).batch(2)
    found["static, shuffled"] = _fitted(strategy, shuffled)
    own = strategy.distribute_datasets_from_function(_own)
    found["own pipelines"] = _fitted(strategy, own)
    return found


def _own(context) -> tf.data.Dataset:
    own = _rows().shard(context.num_input_pipelines, context.input_pipeline_id)
    return own.shuffle(ROWS).batch(2)


def data_shares(resolver, folder) -> list[list[list[int]]]:
    """The batches of epochs of endless data of which worker 1 is the slower one."""
    strategy = tfdist.ParameterServerStrategy(resolver)
    endless = _rows().batch(2).repeat()
    return _fitted(strategy, endless, steps_per_epoch=ROWS // 2, slow_worker=1)


def data_synchronous(resolver, folder) -> dict[str, Any]:
    """The weights after a synchronous training, by whether a callback predicts."""
    found = {}
    for predicts in (False, True):
        keras.utils.set_random_seed(1)
        strategy = tfdist.ParameterServerStrategy(
            resolver, staleness=tfdist.staleness.Synchronous()
        )
        with strategy.scope():
            layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5)]
            model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(_X, _Y, batch_size=4, epochs=2, verbose=0, callbacks=[_Predicts()] * predicts)
        found[predicts] = model.get_weights(), strategy.version
    tf.random.set_seed(None)
    return found
