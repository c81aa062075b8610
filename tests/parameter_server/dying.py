"""A job whose parameter servers are killed; `tfdist run` starts them again.

tfdist run -n 3 --ps P -m tests.parameter_server.dying FOLDER SCENARIO
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder
from tfdist.parameter_server.snapshots.files import SnapshotFiles
from tfdist.parameter_server.snapshots.servers import Servers
from tfdist.parameter_server.snapshots.snapshots import Snapshots

# The tests import this module for its constants.
FOLDER, SCENARIO = sys.argv[1:] if __name__ == "__main__" else ("", "")
FOLDER = pathlib.Path(FOLDER)
EPOCHS = 4
TESTED = 4  # so many batches of this size that the death is noticed before the last one
noted = {"taken": [], "restored": [], "killed": []}


def note(name, content):
    temporary = FOLDER / f".{name}"
    temporary.write_text(json.dumps(content))
    temporary.rename(FOLDER / name)


def kill(index, version):
    noted["killed"].append(version)
    os.kill(json.loads((FOLDER / f"pid-ps-{index}").read_text()), signal.SIGKILL)


class SpiedFiles(SnapshotFiles):
    """Keeps what is written, and can lose a parameter server before it is."""

    victim = None

    def write(self, folder, values):
        victim, SpiedFiles.victim = SpiedFiles.victim, None
        if victim is not None:
            kill(victim, noted["taken"][-1])
        self.newest = {device: [v.numpy() for v in of] for device, of in values.items()}
        places = super().write(folder, values)
        self.written = self.newest
        return places


def spy(strategy):
    """Notes each snapshot, and whether the variables are equal to it once it was restored."""
    snapshots = strategy.snapshots
    files = snapshots._files = SpiedFiles(snapshots._files._on_servers)

    def take(*arguments):
        Snapshots._take(snapshots, *arguments)
        version = snapshots._last.version
        noted["taken"].append(version)
        if SCENARIO == "ahead" and version > strategy.version and not noted["killed"]:
            kill(0, strategy.version)

    def assign(saved, lost):
        Snapshots._assign(snapshots, saved, lost)
        equal = [
            np.array_equal(ref().numpy(), value)
            for device, refs in saved.variables.items()
            for ref, value in zip(refs, files.written[device], strict=True)
        ]
        noted["restored"].append([saved.version, sorted(lost), len(equal), all(equal)])

    snapshots._take, snapshots._assign = take, assign


class Counts(keras.callbacks.Callback):
    """Kills while workers make their updates themselves: in the first epoch, and later."""

    def __init__(self, strategy, *versions):
        super().__init__()
        threading.Thread(target=self.kill, args=[strategy, versions], daemon=True).start()

    def kill(self, strategy, versions):
        for number, version in enumerate(versions):
            while strategy.version < version or strategy.snapshots.restores < number:
                time.sleep(0.002)
            kill(0, strategy.version)


class LosesAWorker(keras.callbacks.Callback):
    """Kills worker 0 and, when that was noticed, the parameter server."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        strategy = self.model.distribute_strategy
        if (self.epoch, batch) == (0, 5):
            os.kill(json.loads((FOLDER / "pid-worker-0").read_text()), signal.SIGKILL)
        elif self.epoch == 1 and strategy.lost and not noted["killed"]:
            kill(0, int(self.model.optimizer.iterations))


class Kills(keras.callbacks.Callback):
    """Kills between updates, in an evaluation, and while a snapshot is taken."""

    tests = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 4):
            kill(0, int(self.model.optimizer.iterations))
        elif (self.epoch, batch) == (1, 5):
            noted["rate"] = float(self.model.optimizer.learning_rate.numpy())
        elif (self.epoch, batch) == (3, 2):
            SpiedFiles.victim = 0

    def on_test_batch_end(self, batch, logs=None):
        self.tests += 1
        if (self.epoch, batch) == (2, 3) and len(noted["killed"]) == 1:
            kill(1, int(self.model.optimizer.iterations))


def rate_of(epoch):
    return 0.01 / (epoch + 1)


def counts(*others, every=15):
    strategy = tfdist.Strategy(snapshot_every=every, worker_timeout=240)
    with strategy.scope():
        model = Counting([0.02] * strategy.num_workers)
        model.compile(Recorder())
    model.built = True
    data = tf.data.Dataset.range(SAMPLES).batch(SAMPLES // BATCHES)
    spy(strategy)
    callbacks = [*(others or [Counts(strategy, 5, 40)]), *strategy.callbacks()]
    history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    noted["why_chief"] = model.train_function.why_chief
    noted["facts"] = model.facts()
    return strategy, model, history


def ahead():
    return counts(keras.callbacks.Callback(), every=2)


def answers_again():
    Servers.lost = lambda servers: []
    return counts()


def with_a_worker():
    return counts(LosesAWorker())


def adam():
    strategy = tfdist.ParameterServerStrategy(
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        snapshot_every=11,
        snapshot_dir=FOLDER,
        worker_timeout=240,
    )
    keras.utils.set_random_seed(1)
    x = np.random.normal(size=(8 * BATCHES, 8)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    with strategy.scope():
        layers = [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(3, activation="softmax"),
        ]
        model = keras.Sequential(layers)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    spy(strategy)
    schedule = keras.callbacks.LearningRateScheduler(rate_of)
    callbacks = [schedule, Kills(), *strategy.callbacks()]
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.predict_on_batch(x)  # traced with the variables as they are before the losses
    history = model.fit(
        data,
        epochs=EPOCHS,
        verbose=0,
        callbacks=callbacks,
        validation_data=(x, y),
        validation_batch_size=TESTED,
    )
    noted["tested"] = callbacks[1].tests
    noted["accuracy"] = model.evaluate(x, y, verbose=0)[1]
    model.save(FOLDER / "model.keras")
    predicted = model.predict(x, verbose=0)
    loaded = keras.models.load_model(FOLDER / "model.keras")
    noted["saved"] = float(np.abs(loaded(x).numpy() - predicted).max())
    noted["on_batch"] = float(np.abs(model.predict_on_batch(x) - predicted).max())
    noted["left"] = [path.name for path in FOLDER.glob("tfdist-snapshots*")]
    return strategy, model, history


def main():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    note(f"pid-{task['type']}-{task['index']}", os.getpid())
    strategy, model, history = globals()[SCENARIO]()
    report = strategy.staleness_report()
    noted["history"] = {
        name: [float(v) for v in values] for name, values in history.history.items()
    }
    noted["iterations"] = int(model.optimizer.iterations)
    noted["updates"] = report.updates
    noted["lost"] = report.lost_updates
    noted["cost"] = [report.snapshots.count, report.snapshots.bytes, report.snapshots.seconds]
    note("facts", noted)


if __name__ == "__main__":
    main()
