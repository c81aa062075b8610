"""One launch of `epoch_ends.py`: trains, and prints its times as a JSON line."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

WIDTH, BATCH = 64, 8


class System(NamedTuple):
    """What trains.

    Attributes:
        title: its name, for tables.
        package: whose strategy; "" for none.
        devices: the number of replicas.
        tuned: whether the user asks TensorFlow to tune the pipeline.
    """

    title: str
    package: str
    devices: int
    tuned: bool = False


SYSTEMS = {
    "keras": System("Keras, one device", "", 1),
    "tensorflow": System("`tf.distribute.MirroredStrategy`, 2 devices", "tf.distribute", 2),
    "tfdist": System("`tfdist.MirroredStrategy`, 2 devices", "tfdist", 2),
    "tuned": System("the same with `options.autotune.enabled = True`", "tfdist", 2, tuned=True),
}


def scope_of(system: System) -> AbstractContextManager[Any]:
    """The scope of the system's strategy, if it has one, on virtual devices."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    virtual = [tf.config.LogicalDeviceConfiguration()] * system.devices
    tf.config.set_logical_device_configuration(cpu, virtual)
    devices = [f"CPU:{index}" for index in range(system.devices)]
    if system.package == "tfdist":  # not imported where tfdist does not train
        import tfdist

        return tfdist.MirroredStrategy(devices).scope()
    if system.package == "tf.distribute":
        return tf.distribute.MirroredStrategy(devices).scope()
    return contextlib.nullcontext()


def measure(system: System, epochs: int, steps: int) -> dict[str, Any]:
    """Seconds of all pauses but the first, and of the whole training."""
    import keras
    import tensorflow as tf

    class Pauses(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.begun = 0.0
            self.found: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            if batch == 0:
                self.found.append(time.perf_counter() - self.begun)

    with scope_of(system):
        layers = [keras.layers.Dense(WIDTH), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        model.compile("sgd", "mse")
    x = np.ones((steps * BATCH, WIDTH), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)
    if system.tuned:
        wanted = tf.data.Options()
        wanted.autotune.enabled = True
        data = data.with_options(wanted)
    pauses = Pauses()
    begun = time.perf_counter()
    model.fit(data, epochs=epochs, verbose=0, callbacks=[pauses])
    return {"pauses": pauses.found[1:], "seconds": time.perf_counter() - begun}


def main() -> None:
    """Runs the system that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    print(json.dumps(measure(SYSTEMS[arguments.system], arguments.epochs, arguments.steps)))


if __name__ == "__main__":
    main()
