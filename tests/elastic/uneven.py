"""An elastic job with `balance=True` in which rank 2 takes three times as long for a sample.

python -m tfdist run -n 3 --min 2 -m tests.elastic.uneven FOLDER [PLAN]...

A plan is as for `tests.elastic.job`, with the moments "micro N" and "step N". Gradients are as in
`tests.elastic.unsent`.
"""

from __future__ import annotations

import os
import pathlib
import pickle
import sys

from tests.elastic.unsent import BATCH, RATE, ROWS, STEPS, data

EPOCHS = 7
SECONDS = 0.01  # for a sample; rank 2 takes longer


def main() -> None:
    """Trains, and writes what came of it."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tests.elastic import job
    from tests.parameter_server.counting import sleep

    folder, *plans = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    number = int(os.environ["TFDIST_ELASTIC"].partition(":")[2])
    for plan in plans:
        job.note_plan(plan, number)
    seconds = SECONDS * (3 if number == 2 else 1)

    class Slow(keras.Sequential):
        def train_step(self, data):
            x, y = data
            own = tf.cast(tf.shape(x)[0], tf.float32)
            return super().train_step((x + sleep(seconds * own), y))

    shares = []

    class Moments(keras.callbacks.Callback):
        decides_in_batches = False

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            shares.append(strategy.balancer.shares.tolist())
            done = self.epoch * STEPS + batch + 1
            job.reached(f"step {done}", soon=True)
            job.reached(f"micro {done}")

    strategy = tfdist.Strategy("auto", balance=True)
    factors = keras.ops.arange(1, 5, dtype="float32")

    def loss(targets, outputs):
        return keras.ops.sum(outputs * factors, axis=1)

    with strategy.scope():
        dense = keras.layers.Dense(4, use_bias=False, kernel_initializer="zeros")
        model = Slow([keras.Input((16,)), dense])
        model.compile(keras.optimizers.SGD(RATE), loss)
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 2, "callbacks": [Moments()]}
    model.fit(data(), np.zeros(ROWS), epochs=EPOCHS, **options)
    found = {"weights": model.get_weights(), "shares": shares, "members": strategy.group.members}
    (folder / f"rank-{number}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
