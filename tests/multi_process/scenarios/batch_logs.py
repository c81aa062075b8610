"""What callbacks see of single batches, in training and in evaluation."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import LambdaCallback

from tests.multi_process.reference import BATCH, MOMENTUM, RATE, X, Y
from tests.multi_process.scenarios.common import error_of, fit, floats, restart, state

_PLAIN = {"shuffle": False, "verbose": 0}


class Untracked(keras.Sequential):
    """Returns the loss of the batch, which no metric tracks."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return self.logs_of(loss)

    def test_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self.logs_of(self.compute_loss(x, y, self(x, training=False)))

    def logs_of(self, loss):
        return {"loss": loss}


class UntrackedTwice(Untracked):
    """Returns another number too."""

    def logs_of(self, loss):
        return {"loss": loss, "twice": 2 * loss}


class Tracked(Untracked):
    """Returns the mean of the losses so far, by Keras' metric of that name."""

    def logs_of(self, loss):
        (metric,) = (metric for metric in self.metrics if metric.name == "loss")
        metric.update_state(loss)
        return self.get_metrics_result()


class Sums(keras.metrics.Metric):
    """The number of samples, and the sum of their targets: a vector."""

    def __init__(self):
        super().__init__(name="sums")
        self._total = self.add_variable((2,), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._total.assign_add([tf.cast(tf.size(y_true), tf.float32), tf.reduce_sum(y_true)])

    def result(self):
        return 1.0 * self._total


def _model(here, kind=keras.Sequential, metrics=()):
    with here.strategy.scope():
        model = kind([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        model.compile(optimizer, "mse", metrics=[metric() for metric in metrics] or None)
        model.optimizer.build(model.trainable_variables)
    restart(model)
    return model


def _noting(seen, hook):
    return LambdaCallback(**{hook: lambda batch, logs: seen.append(_plain(logs))})


def _plain(logs):
    return {name: np.asarray(value).tolist() for name, value in logs.items()}


def own_steps(here):
    """What callbacks see where steps of the user's own return numbers."""
    found = {}
    for kind in (Untracked, UntrackedTwice, Tracked):
        model, trained, tested = _model(here, kind), [], []
        callbacks = [_noting(trained, "on_train_batch_end"), _noting(tested, "on_test_batch_end")]
        fit(model, *callbacks, validation_data=(X, Y), validation_batch_size=BATCH)
        found[kind.__name__] = {"train": trained, "test": tested, "state": state(model)}
    model = _model(here, Untracked)
    on_batch = [
        model.test_on_batch(X[:15], Y[:15], return_dict=True),
        model.train_on_batch(X[:15], Y[:15], return_dict=True),
    ]
    found["on batch"] = [floats(logs) for logs in on_batch]
    return found


def vectors(here):
    """A metric whose result is a vector, with a callback that looks into batches."""
    model, trained, tested = _model(here, metrics=[Sums]), [], []
    callbacks = [_noting(trained, "on_train_batch_end"), _noting(tested, "on_test_batch_end")]
    model.fit(X, Y, BATCH, callbacks=callbacks, validation_data=(X, Y), **_PLAIN)
    return {"train": [logs["sums"] for logs in trained], "test": [logs["sums"] for logs in tested]}


def evaluated(here):
    """What callbacks see of the batches of `evaluate`; rank 1 alone has one in the last case."""
    model, seen, in_one = here.model(), [], []
    model.evaluate(X, Y, BATCH, callbacks=[_noting(seen, "on_test_batch_end")], verbose=0)
    callbacks = [_noting(in_one, "on_test_batch_end")] if here.rank == 1 else []
    metrics = model.evaluate(X, Y, BATCH, callbacks=callbacks, verbose=0, return_dict=True)
    return {"batches": seen, "in one rank": in_one, "metrics": floats(metrics)}


def stopped(here):
    """Rank 1 ends an evaluation after the second batch; in training, each of two validations."""
    model, seen = here.model(), []

    def note(batch, logs):
        seen.append(batch)
        if here.rank == 1 and batch == 1:
            model.stop_evaluating = True

    callback = LambdaCallback(on_test_batch_end=note)
    model.evaluate(X, Y, BATCH, callbacks=[callback], verbose=0)
    options = {"validation_data": (X, Y), "validation_batch_size": BATCH, "epochs": 2}
    history = fit(model, callback, **options)
    return {"seen": seen, "history": history, "state": state(model)}


def unasked(here):
    """How often the metrics of all ranks are read, without and with a callback that sees them."""
    model, counts = here.model(), []
    for callbacks in ([], [_noting([], "on_test_batch_end")]):
        with mock.patch.object(model, "get_metrics_result", wraps=model.get_metrics_result) as read:
            model.evaluate(X, Y, BATCH, callbacks=callbacks, verbose=0)
        counts.append(read.call_count)
    return {"counts": counts}


def metric_from_outside(here):
    """What `fit` and `evaluate` say of a metric that was made outside of the scope."""
    metric = keras.metrics.MeanAbsoluteError()
    with here.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[metric])
    return [error_of(run, X, Y, verbose=0) for run in (model.evaluate, model.fit)]
