"""Training with a backup after each epoch, killed at one point of writing the second one.

python kills.py FOLDER STRATEGY POINT...

In one process ("mirrored", or "parameter_server" with all servers in it) it starts again after each
kill, with the next point, until it comes to the end. Each of several ranks trains once.
"""

import builtins
import contextlib
import json
import os
import pathlib
import signal
import sys

import h5py
import keras
import numpy as np

import tfdist

EPOCHS, BATCHES, ACCUMULATION = 8, 8, 3
POINTS = ("weights", "between", "metadata", "moving", "after")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Kill(keras.callbacks.Callback):
    """Stands behind the backup. From the second epoch on, writing a backup ends at `point`."""

    def __init__(self, point):
        super().__init__()
        self.point = point
        self.epochs = 0
        self.datasets = 0

    @property
    def armed(self):
        return self.epochs == 2

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs += 1
        if self.epochs == 1:
            getattr(self, self.point)()

    def on_epoch_end(self, epoch, logs=None):
        if self.armed and self.point == "after":
            die()

    def weights(self):
        create = h5py.Group.create_dataset

        def create_dataset(group, *args, **kwargs):
            self.datasets += self.armed
            if self.datasets == 3:
                group.file.flush()
                die()
            return create(group, *args, **kwargs)

        h5py.Group.create_dataset = create_dataset

    def metadata(self):
        original = builtins.open

        def open_file(path, mode="r", *args, **kwargs):
            is_metadata = str(path).endswith("training_metadata.json") and mode == "w"
            if is_metadata and self.armed and self.point == "between":
                die()
            file = original(path, mode, *args, **kwargs)
            if is_metadata and self.armed:
                file.write('{"epo')
                file.flush()
                die()
            return file

        builtins.open = open_file

    between = metadata

    def moving(self):
        original = os.replace

        def replace(source, target, *args, **kwargs):
            """The weights were moved, and what belongs to them is next."""
            name = pathlib.Path(target)
            if (
                self.armed
                and name.name == "training_metadata.json"
                and name.parent.name == "backup"
            ):
                die()
            return original(source, target, *args, **kwargs)

        os.replace = replace

    def after(self):
        pass


class Note(keras.callbacks.Callback):
    """Writes down the first epoch of each start."""

    def __init__(self, path):
        super().__init__()
        self.path, self.first = path, True

    def on_epoch_begin(self, epoch, logs=None):
        if self.first:
            with open(self.path, "a") as file:
                file.write(f"{epoch}\n")
        self.first = False


def train(folder, strategy, point):
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(0)
    x = random.normal(size=(8 * BATCHES, 8)).astype("float32")
    y = (x @ random.normal(size=(8, 3))).argmax(axis=1)
    with strategy.scope():
        layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
    callbacks = [keras.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)]
    rank = strategy.processes.rank
    if rank == 0:
        callbacks += [Note(folder / "starts"), *([Kill(point)] if point else [])]
    model.fit(x, y, 8, EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    variables = [*model.variables, *model.optimizer.variables]
    state = [np.asarray(keras.ops.convert_to_numpy(v)).ravel() for v in variables]
    np.save(folder / f"rank{rank}.npy", np.concatenate(state).astype("float64"))
    if rank == 0:
        (folder / "updates").write_text(json.dumps(int(model.optimizer.iterations.numpy())))


def run(folder, name, point):
    if name == "parameter_server":
        with tfdist.cluster.local_cluster(workers=2, ps=1) as resolver:
            policy = tfdist.staleness.Synchronous()
            train(folder, tfdist.ParameterServerStrategy(resolver, staleness=policy), point)
    elif name == "mirrored":
        tfdist.testing.virtual_devices(2)
        train(folder, tfdist.MirroredStrategy(accumulation_steps=ACCUMULATION), point)
    else:
        options = {"heartbeat_timeout": 3} if name == "multi_worker" else {}
        train(folder, tfdist.Strategy(name, accumulation_steps=ACCUMULATION, **options), point)


def main():
    folder, name, points = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if name not in ("mirrored", "parameter_server"):
        run(folder, name, (*points, None)[0])
        return
    for point in (*points, None):
        # TensorFlow has been imported, which takes longest, but has run nothing so far.
        process = os.fork()
        if not process:
            status = 1
            with contextlib.suppress(SystemExit):
                run(folder, name, point)
                status = 0
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status != (-signal.SIGKILL if point else 0):
            sys.exit(f"killed at {point}: ended with status {status}")


if __name__ == "__main__":
    main()
