"""An elastic job whose gradients do not depend on the weights, with lossy compression.

python -m tfdist run -n 3 --min 1 -m tests.elastic.unsent FOLDER COMPRESSOR [PLAN]...

A plan is as for `tests.elastic.job`, with the moments "micro N", "step N", "epoch N", "form N" and
"evaluate", which is after training;
or it is a fault of `tests.elastic.faulty`. What all ranks have sent and what they have left unsent
must be the sum of the gradients. So each rank notes after each step what it has left unsent, in
`unsent-N`, and at the end its weights.
"""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import sys
import zipfile

ROWS, BATCH, EPOCHS, RATE = 101, 12, 4, 0.5
STEPS = -(-ROWS // BATCH)
ACCUMULATED = int(os.environ.get("ACCUMULATED", "1"))


def data():
    """The samples: the mean of a batch is the gradient of each output, up to a factor."""
    import numpy as np

    return (0.03 * np.random.default_rng(3).normal(size=(ROWS, 16))).astype("float32")


def gradients(epochs=EPOCHS):
    """The gradient of each update, of shape [16, 4]."""
    import numpy as np

    factors = np.arange(1, 5, dtype="float32")
    batches = [data()[start : start + BATCH] for start in range(0, ROWS, BATCH)] * epochs
    means = np.stack([np.outer(batch.mean(axis=0), factors) for batch in batches])
    whole = len(means) // ACCUMULATED * ACCUMULATED
    return means[:whole].reshape(-1, ACCUMULATED, 16, 4).mean(axis=1)


def saved(path):
    """The residual in a saved model: the sum over all ranks, as one vector."""
    import h5py

    with zipfile.ZipFile(path) as archive:
        data = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(data) as file:
        found = file["optimizer/compression_state/vars"]
        return sum(found[name][()] for name in found if name.startswith("residual")).ravel()


def main() -> None:
    """Trains, and writes what came of it."""
    import keras
    import numpy as np

    import tfdist
    from tests.elastic import faulty, job

    folder, compressor, *plans = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    number = int(os.environ["TFDIST_ELASTIC"].partition(":")[2])
    for plan in plans:
        if "@" in plan:
            faulty.install(plan, number)
        else:
            job.note_plan(plan, number)

    compression = {
        "topk": tfdist.compression.TopK(0.2, min_bytes=0),
        "powersgd": tfdist.compression.PowerSGD(1, min_bytes=0),
        "sign": tfdist.compression.SignSGD(error_feedback=True, min_bytes=0),
    }[compressor]
    strategy = tfdist.Strategy("auto", compression=compression, accumulation_steps=ACCUMULATED)
    job.watch_forming(strategy.group._connection)

    def unsent():
        parts = model.optimizer.compression_state.parts
        local = [strategy.experimental_local_results(part["residual"])[0] for part in parts]
        return [variable.numpy() for variable in local]

    class Evaluation(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            if batch == 1:
                job.reached("evaluate", soon=True)

    class Moments(keras.callbacks.Callback):
        decides_in_batches = False

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if not strategy.group.is_apart:
                (folder / f"unsent-{number}").write_bytes(pickle.dumps(unsent()))
            done = self.epoch * STEPS + batch + 1
            job.reached(f"step {done}", soon=True)
            job.reached(f"micro {done}")

        def on_epoch_end(self, epoch, logs=None):
            job.reached(f"epoch {epoch + 1}")

    factors = keras.ops.arange(1, 5, dtype="float32")

    def loss(targets, outputs):
        return keras.ops.sum(outputs * factors, axis=1)

    with strategy.scope():
        dense = keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((16,)), dense])
        model.compile(keras.optimizers.SGD(RATE), loss)
    x = data()
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 2, "callbacks": [Moments()]}
    history = model.fit(x, np.zeros(ROWS), epochs=EPOCHS, **options).history
    model.evaluate(x, np.zeros(ROWS), batch_size=BATCH, verbose=0, callbacks=[Evaluation()])
    model.save(folder / "model.keras")
    (folder / f"unsent-{number}").write_bytes(pickle.dumps(unsent()))
    found = {
        "weights": model.get_weights(),
        "history": history,
        "members": strategy.group.members,
        "faults": faulty.happened,
    }
    (folder / f"rank-{number}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
