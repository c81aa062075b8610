"""An elastic job whose connections break in every second step, and what is left of old traces.

python -m tfdist run -n 2 --min 2 -m tests.elastic.retraced FOLDER

Rank 0 writes, for each epoch, how many groups there have been and how many graphs there are.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import sys

EPOCHS, STEPS, BATCH = 4, 10, 8


def main() -> None:
    """Trains, and counts."""
    import keras
    import numpy as np
    from tensorflow.python.framework.func_graph import FuncGraph

    import tfdist
    from tests.elastic import faulty

    number = int(os.environ["TFDIST_ELASTIC"].partition(":")[2])
    faulty.install("interrupt@2", number)
    strategy = tfdist.Strategy("auto")
    found = []

    class Count(keras.callbacks.Callback):
        decides_in_batches = False

        def on_epoch_end(self, epoch, logs=None):
            gc.collect()
            graphs = sum(isinstance(one, FuncGraph) for one in gc.get_objects())
            found.append({"groups": strategy.group.generation, "graphs": graphs})

    with strategy.scope():
        layers = [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, 4)).astype("float32")
    model.fit(x, x[:, :1], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[Count()])
    if number == 0:
        pathlib.Path(sys.argv[1], "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
