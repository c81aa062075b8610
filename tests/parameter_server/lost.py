"""A job that loses servers for good; the chief ends with an error.

python -m tests.parameter_server.lost FOLDER VICTIM...
"""

import json
import os
import pathlib
import signal
import sys

import keras

import tfdist
from tests.parameter_server.counting import Counting, Recorder
from tests.parameter_server.job import CONFIG, data, name_of, note

FOLDER, VICTIMS = pathlib.Path(sys.argv[1]), sys.argv[2:]


class Kill(keras.callbacks.Callback):
    """Kills the victims after some batches."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            for victim in VICTIMS:
                os.kill(json.loads((FOLDER / f"pid-{victim}").read_text()), signal.SIGKILL)


def main():
    note(f"pid-{name_of(CONFIG['task'])}", os.getpid())
    strategy = tfdist.Strategy(input="dynamic", worker_timeout=1)
    with strategy.scope():
        model = Counting([0.02] * strategy.num_workers)
        model.compile(Recorder())
    model.built = True
    model.fit(data(), epochs=100, verbose=0, callbacks=[Kill()])


if __name__ == "__main__":
    main()
