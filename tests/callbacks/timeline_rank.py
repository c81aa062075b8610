"""One rank that trains with a Timeline, and writes its weights.

python -m tfdist run -n 2 -m tests.callbacks.timeline_rank STRATEGY FILE [LOCAL] [MOMENT]

LOCAL is "round" or "overlap". MOMENT is where the process that was rank 1 at first dies: a step,
such as "5", or "end", while the ranks gather what they have noted.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np

import tfdist

LOCAL = {
    "round": tfdist.LocalSGD(2),
    "overlap": tfdist.DiLoCo(6, fragments=2, overlap=2),
}
STEPS = 3, 7
X = np.random.default_rng(0).normal(size=(128, 64)).astype("float32")


class Dies(keras.callbacks.Callback):
    """Kills this process before a step."""

    decides_in_batches = changes_variables = saves_alone = False

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def die_at_the_end(strategy):
    """Kills this process where it tells the others how long its text is."""

    def all_gather_texts(text):
        os.kill(os.getpid(), signal.SIGKILL)

    class Dying(keras.callbacks.Callback):
        decides_in_batches = changes_variables = saves_alone = False

        def on_epoch_end(self, epoch, logs=None):
            strategy.processes.all_gather_texts = all_gather_texts

    return Dying()


def train(strategy, callbacks):
    """The model after an epoch of eight steps."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(2048), keras.layers.Dense(512), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    given = {"batch_size": 16, "shuffle": False, "verbose": 0}
    model.fit(X, X[:, :1], callbacks=callbacks, **given)
    return model


def main() -> None:
    """Trains some steps; rank 0 writes the file."""
    name, path, *more = sys.argv[1:]
    local = LOCAL[more.pop(0)] if more and more[0] in LOCAL else None
    strategy = tfdist.Strategy(name, local=local)
    _, _, number = os.environ.get("TFDIST_ELASTIC", "").partition(":")
    callbacks = [tfdist.callbacks.Timeline(path, steps=STEPS)]
    if more and number == "1":
        callbacks += [die_at_the_end(strategy) if more[0] == "end" else Dies(int(more[0]))]
    model = train(strategy, callbacks)
    weights = [value.tolist() for value in model.get_weights()[3:]]
    rank = strategy.processes.rank
    pathlib.Path(f"{path}.{rank}").write_text(json.dumps(weights))


if __name__ == "__main__":
    main()
