"""What every process of a parameter server job with faults runs; the chief says how far it is.

python -m tests.faults.servers_job FOLDER POLICY [UPDATE]...

The chief makes a file `update-N` after update N, for each UPDATE. Without TF_CONFIG, the job trains
on one device. Environment variables: EPOCHS; SECONDS, of a step; WORKER_TIMEOUT; SNAPSHOT_EVERY.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import pickle
import signal
import sys
import threading
import time

SAMPLES, BATCH = 96, 8
EPOCHS = int(os.environ.get("EPOCHS", "3"))
UPDATES = EPOCHS * SAMPLES // BATCH
SECONDS = float(os.environ.get("SECONDS", "0.05"))
SYNCHRONOUS = "synchronous"
# With `Synchronous`, the chief makes the updates. In the other one, workers make them under a lock;
# then the counts of samples are exact, and the weights depend on the order.
POLICIES = (SYNCHRONOUS, "workers update")


def tell(folder: pathlib.Path, strategy, updates: list[int]) -> None:
    """Makes a file after each of these updates."""
    for number in updates:
        while strategy.version < number:
            time.sleep(0.002)
        (folder / f"update-{number}").touch()


def main() -> None:
    """Trains, and writes what came of it."""
    folder, policy = pathlib.Path(sys.argv[1]), sys.argv[2]
    faulthandler.register(signal.SIGUSR1)  # for who looks at one that hangs

    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tests.parameter_server.counting import Counting, Recorder, sleep

    class Slow(keras.Sequential):
        def train_step(self, data):
            x, y = data
            return super().train_step((x + sleep(SECONDS), y))

    def exact():
        layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        kind = Slow if strategy else keras.Sequential
        model = kind([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        random = np.random.default_rng(0)
        x = random.normal(size=(SAMPLES, 6)).astype("float32")
        y = (x @ random.normal(size=(6, 1))).astype("float32")
        return model, tf.data.Dataset.from_tensor_slices((x, y))

    def counting():
        model = Counting([SECONDS] * strategy.num_workers)
        model.compile(Recorder())
        model.built = True
        return model, tf.data.Dataset.range(SAMPLES)

    scope, strategy = contextlib.nullcontext(), None
    if "TF_CONFIG" in os.environ:
        strategy = tfdist.ParameterServerStrategy(
            staleness=tfdist.staleness.Synchronous() if policy == SYNCHRONOUS else None,
            input="dynamic",
            worker_timeout=float(os.environ.get("WORKER_TIMEOUT", "60")),
            snapshot_every=json.loads(os.environ.get("SNAPSHOT_EVERY", "null")),
        )
        scope = strategy.scope()
        given = (folder, strategy, [int(number) for number in sys.argv[3:]])
        threading.Thread(target=tell, args=given, daemon=True).start()
    keras.utils.set_random_seed(1)
    with scope:
        model, data = exact() if policy == SYNCHRONOUS else counting()
    began = time.monotonic()
    history = model.fit(data.batch(BATCH), epochs=EPOCHS, verbose=0).history
    found = {
        "seconds": time.monotonic() - began,
        "history": history,
        "weights": model.get_weights(),
        "iterations": int(model.optimizer.iterations.numpy()),
    }
    if strategy:
        found["version"] = strategy.version
        found["lost_updates"] = strategy.staleness_report().lost_updates
    if policy != SYNCHRONOUS:
        found |= model.facts()
    (folder / "result.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
