"""Scenarios of snapshots that cannot be written; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

import shutil
import tempfile

import keras
import numpy as np

import tfdist
from tests.log_messages import log_messages

EPOCHS, BATCHES = 3, 8
_X = np.random.default_rng(0).normal(size=(4 * BATCHES, 3)).astype("float32")


def _fitted(strategy, *callbacks) -> dict:
    """The updates, snapshots and log of a training, and its error."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    error = None
    with log_messages() as messages:
        try:
            model.fit(_X, _X[:, :1], 4, EPOCHS, verbose=0, callbacks=[*callbacks])
        except OSError as caught:
            error = str(caught)
    report = strategy.staleness_report()
    found = {"updates": report.updates, "snapshots": report.snapshots.count, "error": error}
    return found | {"log": [message for message in messages if message.startswith("tfdist: ")]}


def snapshots_fail(resolver, folder):
    """What becomes of training, by what hinders its snapshots."""
    found = {}
    own, tempfile.tempdir = tempfile.tempdir, str(folder / "missing")
    try:
        found["no temporary folder"] = _fitted(tfdist.ParameterServerStrategy(resolver))
        asking = tfdist.ParameterServerStrategy(resolver, snapshot_every=4)
        found["no temporary folder, asked for"] = _fitted(asking)
    finally:
        tempfile.tempdir = own
    (folder / "file").write_text("")
    asking = tfdist.ParameterServerStrategy(resolver, snapshot_dir=folder / "file")
    found["no folder"] = _fitted(asking)

    def lose_folder(epoch, logs):
        if epoch == 0:
            shutil.rmtree(folder / "shared")
            (folder / "shared").write_text("")

    losing = keras.callbacks.LambdaCallback(on_epoch_end=lose_folder)
    options = {"snapshot_every": 4, "snapshot_dir": folder / "shared"}
    found["lost later"] = _fitted(tfdist.ParameterServerStrategy(resolver, **options), losing)
    return found
