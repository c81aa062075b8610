"""Compression among processes: every compressor, monitored, saved and resumed."""

import keras
import numpy as np

import tfdist
from tests.multi_process import layers
from tests.multi_process.scenarios.common import floats
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

    path = here.folder / "by_all.keras"
    model = _model(strategy)
    layers.fit(model, last=2)
    model.save(path)
    here.meet()
    found["saved by all"] = _go_on(strategy, path)

    path = here.folder / "by_the_chief.keras"
    layers.fit(_model(strategy), last=2, callbacks=(_SavesInTheChief(strategy, path),))
    here.meet()
    found["saved by the chief in a callback"] = _go_on(strategy, path)

    backup = keras.callbacks.BackupAndRestore(here.folder / "backup", delete_checkpoint=False)
    layers.fit(_model(strategy), last=2, callbacks=(backup,))
    model = _model(strategy)
    layers.fit(model, callbacks=(backup,))
    found["backed up"] = layers.state(model)
    return found


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
