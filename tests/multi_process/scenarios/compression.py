"""Compression among processes: every compressor, monitored, saved and resumed."""

import functools

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multi_process import layers
from tests.multi_process.reference import BATCH, X, Y
from tests.multi_process.scenarios.common import error_of, floats, linear, wait_for
from tfdist import compression


def every_compressor(here):
    """A layer for each compressor, and the monitor's history."""
    return _monitored(here, layers.COMPRESSORS)


def every_way(here):
    """A layer for each way to travel, and few updates: rounding errors of sums grow in each."""
    return _monitored(here, layers.WAYS, last=1)


def momentum_before_the_exchange(here):
    """A compressor that has the momentum of all layers."""
    return _monitored(here, layers.MOMENTUM)


def _monitored(here, compressors, last=4):
    strategy = here.make(compression=layers.choice(compressors))
    model = layers.model(strategy, compressors)
    history = layers.fit(model, last=last, callbacks=(tfdist.callbacks.CompressionMonitor(),))
    return {"history": floats(history_last(history)), **layers.state(model)}


def history_last(history):
    """The last epoch's values."""
    return {name: values[-1] for name, values in history.items()}


def resumed(here):
    """What an interrupted training comes to, by how it was saved."""
    strategy = here.make(compression=layers.choice(layers.STATEFUL))
    whole = _model(strategy)
    layers.fit(whole)
    found = {"whole": layers.state(whole)}

    # One training is interrupted, and saved in every way.
    by_all, by_the_chief = here.folder / "by_all.keras", here.folder / "by_the_chief.keras"
    backup = keras.callbacks.BackupAndRestore(here.folder / "backup", delete_checkpoint=False)
    model = _model(strategy)
    layers.fit(model, last=2, callbacks=(_SavesInTheChief(strategy, by_the_chief), backup))
    model.save(by_all)
    here.meet()
    found["saved by all"] = _go_on(strategy, by_all)
    found["saved by the chief in a callback"] = _go_on(strategy, by_the_chief)
    model = _model(strategy)
    layers.fit(model, callbacks=(backup,))
    found["backed up"] = layers.state(model)
    return found


def accumulated(here):
    """Eight batches per epoch and three per update, interrupted in mid-accumulation."""
    strategy = here.make(compression=layers.choice(layers.ACCUMULATED), accumulation_steps=3)

    def model():
        return layers.model(strategy, layers.ACCUMULATED, "adam")

    def go_on(model):
        layers.fit(model, first=2, batch=6)
        return layers.state(model)

    whole = model()
    layers.fit(whole, batch=6)
    found = {"replicas": strategy.num_replicas_in_sync, "whole": layers.state(whole)}

    backup = keras.callbacks.BackupAndRestore(here.folder / "backup", delete_checkpoint=False)
    first = model()
    layers.fit(first, last=2, batch=6, callbacks=(backup,))
    first.save(here.folder / "model.keras")
    here.meet()
    with strategy.scope():
        found["saved by all"] = go_on(keras.models.load_model(here.folder / "model.keras"))

    # Into a model that has been trained further, of which nothing may be left.
    layers.fit(whole, batch=6, callbacks=(backup,))
    found["backed up"] = layers.state(whole)
    return found


def saved_by_callbacks_of_the_chief(here):
    """Only rank 0 has callbacks that save and load; the gradient of a third batch waits."""
    strategy = here.make(compression=compression.TopK(0.5, min_bytes=0), accumulation_steps=2)
    model, path = linear(strategy), str(here.folder / "{epoch}.weights.h5")
    own = [_SavesAndLoads(path), keras.callbacks.ModelCheckpoint(path, save_weights_only=True)]
    _fit_three_batches(model, *(own if here.rank == 0 else []), epochs=2)
    found = {"after the callbacks": _waiting(model)}
    here.meet()
    for name in ("1", "2", "end"):
        model.load_weights(path.format(epoch=name))
        found[name] = _waiting(model)
    in_batches = keras.callbacks.ModelCheckpoint(path, save_freq=1, save_weights_only=True)
    try:
        _fit_three_batches(model, *([in_batches] if here.rank == 0 else []))
    except ValueError as error:
        found["in batches"] = str(error)
    expected = linear(strategy)
    found["expected"] = {}
    for name in ("1", "2"):
        _fit_three_batches(expected)
        found["expected"][name] = _waiting(expected)
    return found


def saved_while_others_evaluate(here):
    """Rank 0 saves alone while the others are in `evaluate` already; or it does not save."""
    strategy = here.make(compression=compression.TopK(0.5, min_bytes=0), accumulation_steps=2)
    model, path = linear(strategy), str(here.folder / "{name}.weights.h5")
    states, copies = [model.optimizer.accumulator, model.optimizer.compression_state], []
    looks = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: copies.extend(state._copy for state in states)
    )
    _fit_three_batches(model, looks)
    found = {"sent for nothing": copies != [None, None]}
    callback = _SavesBeforeItEvaluates(here, path)
    _fit_three_batches(model, callback)
    found["losses"], found["trained"] = callback.losses, _waiting(model)
    here.meet()
    for name in ("before", "after"):
        model.load_weights(path.format(name=name))
        found[name] = _waiting(model)
    _fit_three_batches(model, changed := _SavesAfterAChange(here, path.format(name="changed")))
    return {**found, "error": changed.error, "goes on": _waiting(model)["weights"]}


class _SavesBeforeItEvaluates(keras.callbacks.Callback):
    def __init__(self, here, path):
        super().__init__()
        self._here, self._path = here, path

    def on_epoch_end(self, epoch, logs=None):
        others = self._here.folder / "others-evaluate"
        if self._here.rank == 0:
            wait_for(others)
            self.model.save_weights(self._path.format(name="before"))
        else:
            others.touch()
        self._here.meet()
        self.losses = [self.model.evaluate(X[:48], Y[:48], BATCH, verbose=0)]
        if self._here.rank == 0:
            self.model.save_weights(self._path.format(name="after"))


def saved_after_a_nested_fit(here):
    """Callbacks of all ranks train another model; then rank 0 saves alone, and one more fails."""
    options = {"compression": compression.TopK(0.5, min_bytes=0), "accumulation_steps": 2}
    strategy = here.make(**options)
    model, other, path = linear(strategy), linear(strategy), here.folder / "own.weights.h5"
    saves = _TrainsAnotherAndSaves(here, other, path)
    _fit_three_batches(model, saves)
    found = {"trained": _waiting(model), "error": error_of(_fit_three_batches, model, _Fails())}
    here.meet()
    model.load_weights(path)
    return {**found, "saved": _waiting(model)}


class _TrainsAnotherAndSaves(keras.callbacks.Callback):
    def __init__(self, here, other, path):
        super().__init__()
        self._here, self._other, self._path = here, other, path

    def on_epoch_end(self, epoch, logs=None):
        _fit_three_batches(self._other, keras.callbacks.LambdaCallback(on_epoch_end=_nothing))
        if self._here.rank == 0:
            self.model.save_weights(self._path)


class _Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("a callback fails")


def _nothing(epoch, logs):
    """A callback that may save, but does not."""


class _SavesAfterAChange(keras.callbacks.Callback):
    """Rank 1 changes by hand what it keeps; then rank 0 saves alone."""

    def __init__(self, here, path):
        super().__init__()
        self._here, self._path, self.error = here, path, None

    def on_epoch_end(self, epoch, logs=None):
        changed = self._here.folder / "changed"
        if self._here.rank == 0:
            wait_for(changed)
            self.error = error_of(self.model.save_weights, self._path)
        else:
            (total,) = self.model.optimizer.accumulator.sums
            for local in self._here.strategy.experimental_local_results(total):
                local.assign(tf.ones(local.shape))
            changed.touch()


def failing_to_save(here):
    """Rank 0 cannot write, at first; what the others send must not be left over."""
    strategy = here.make(compression=compression.TopK(0.5, min_bytes=0), accumulation_steps=2)
    model = linear(strategy)
    _fit_three_batches(model)
    found = {"no folder": error_of(model.save, here.folder / "missing" / "model.keras")}
    accumulator = model.optimizer.accumulator
    if here.rank == 0:
        accumulator.save_own_variables = functools.partial(_fill_the_disk, accumulator)
    found["full disk"] = error_of(model.save, here.folder / "model.keras")
    if here.rank == 0:
        del accumulator.save_own_variables
    model.save(here.folder / "model.keras")
    here.meet()
    with strategy.scope():
        loaded = keras.models.load_model(here.folder / "model.keras")
    return {**found, "saved": _waiting(model), "loaded": _waiting(loaded)}


def _fill_the_disk(accumulator, store):
    class Full(dict):
        def __setitem__(self, key, value):
            if key != "micro_step":
                raise OSError("No space left on device")

    type(accumulator).save_own_variables(accumulator, Full())


class _SavesAndLoads(keras.callbacks.Callback):
    """Loads the first epoch's file when training ends, and saves that again."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_train_end(self, logs=None):
        self.model.load_weights(self._path.format(epoch=1))
        self.model.save_weights(self._path.format(epoch="end"))


def _fit_three_batches(model, *callbacks, **options):
    data = X[:48], Y[:48], BATCH
    model.fit(*data, verbose=0, shuffle=False, callbacks=list(callbacks), **options)


def _waiting(model):
    """The weights, and what the first local replica has for itself."""
    optimizer = model.optimizer
    states = [optimizer.accumulator, optimizer.compression_state]
    own = [{k: v[0].tolist() for k, v in s._local_rows().items()} for s in states]
    return {"own": own, "weights": [w.tolist() for w in model.get_weights()]}


def saved_while_one_rank_has_nothing_new(here):
    """Saves again after a training in which rank 0 kept what it had: nothing."""
    strategy = here.make(compression=compression.Threshold(1e3, min_bytes=0))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
    x = np.concatenate([np.zeros((4, 4)), np.ones((4, 4))])  # rank 0's half, then rank 1's
    for _ in range(2):
        model.fit(x, np.ones((8, 1)), 8, epochs=1, shuffle=False, verbose=0)
        model.save(here.folder / "model.keras")
    rows = model.optimizer.compression_state._local_rows()["residual_0"]
    return {"kept": bool(np.any(rows))}


def _model(strategy):
    return layers.model(strategy, layers.STATEFUL)


def _go_on(strategy, path):
    with strategy.scope():
        model = keras.models.load_model(path)
    layers.fit(model, first=2)
    return layers.state(model)


class _SavesInTheChief(keras.callbacks.Callback):
    def __init__(self, strategy, path):
        super().__init__()
        self._strategy, self._path = strategy, path

    def on_epoch_end(self, epoch, logs=None):
        if self._strategy.is_chief and epoch == 1:
            self.model.save(self._path)
