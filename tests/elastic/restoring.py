"""A training whose first rank dies while `fit` begins, perhaps in the middle of a backup.

python -m tfdist run -n 3 --min 1 -m tests.elastic.restoring FOLDER
"""

from __future__ import annotations

import os
import signal
import sys

import keras
import numpy as np

import tfdist


class Dies(keras.callbacks.Callback):
    """Ends the first rank before the callbacks after this one."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Kills this process."""
        if self.model.distribute_strategy.is_chief:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains."""
    with tfdist.Strategy("auto").scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 1))
    backup = keras.callbacks.BackupAndRestore(sys.argv[1])
    model.fit(x, x, batch_size=4, epochs=2, verbose=0, callbacks=[Dies(), backup])


if __name__ == "__main__":
    main()
