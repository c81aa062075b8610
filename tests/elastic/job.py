"""A training of an elastic job in which ranks die, stop and leave at named moments.

python -m tfdist run -n 3 --min 1 -m tests.elastic.job FOLDER [RANK:SIGNAL:MOMENT]...

A signal may be for the rank's launcher, as in "2:launcher SIGTERM:step 3", or for another process,
whose number follows, as in "0:SIGKILL@4:step 3". With SUMMED=all, reducers sum whatever they can.

"PAUSE" stops the rank for five seconds, and "CLOCK" sets the clock of all ranks one day forward, by
`tests/faults/clock.c`.

A moment is "start", "strategy", "trace", "step N", "micro N", "evaluate", "epoch N", "form N" (the
group changes), "end", or "after S", the seconds since the rank has its strategy; N counts from 1.
Without a launcher, it trains on one device. With STEP=function, the step of the model is a
`tf.function`; with STEP="eager function", Keras calls it eagerly.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

SAMPLES, BATCH, ACCUMULATED = 101, 24, 2
SEED = int(os.environ.get("SEED", "0"))  # of the data
EPOCHS = int(os.environ.get("EPOCHS", "3"))
SECONDS = float(os.environ.get("SECONDS", "0"))  # that a step takes longer
STEP = os.environ.get("STEP", "")
IS_SUMMED = os.environ.get("SUMMED", "") == "all"
_SOON = 0.004  # seconds: somewhere in the next operation

_plans: dict[str, tuple[bool, str]] = {}


def note_plan(plan: str, number: int) -> None:
    """Notes what happens to a rank, if this process is the rank."""
    rank, name, moment = plan.split(":")
    if int(rank) == number:
        *to_launcher, name = name.split()
        _plans[moment] = bool(to_launcher), name


def reached(moment: str, soon: bool = False) -> None:
    """Sends this process its signal, if it has one for this moment, once."""
    plan = _plans.pop(moment, None)
    if plan is None:
        return
    to_launcher, name = plan
    name, _, other = name.partition("@")
    if other:
        target = int(pathlib.Path(sys.argv[1], f"pid-{other}").read_text())
    else:
        target = os.getppid() if to_launcher else os.getpid()

    def act() -> None:
        if name == "CLOCK":
            pathlib.Path(os.environ["CLOCK_IS_AHEAD"]).touch()
            return
        if name == "PAUSE":
            later = f"sleep 5; kill -CONT {target}"
            subprocess.Popen(["sh", "-c", later], start_new_session=True)
        os.kill(target, signal.SIGSTOP if name == "PAUSE" else getattr(signal, name))

    if soon:
        threading.Timer(_SOON, act).start()
    else:
        act()


def start_clock() -> None:
    """Begins to count the seconds of "after S"."""
    for moment in [moment for moment in _plans if moment.startswith("after ")]:
        timer = threading.Timer(float(moment.split()[1]), reached, [moment])
        timer.daemon = True
        timer.start()


def watch_forming(connection) -> None:
    """Counts how often the group changes."""
    form, numbers = connection.form, itertools.count(1)

    def counted(*given) -> None:
        reached(f"form {next(numbers)}")
        form(*given)

    connection.form = counted


def _sums_by_reducers(strategy) -> int:
    """How many different sums the reducers of the last group make."""
    exchanges = strategy.engine.exchanges
    return 0 if exchanges is None else exchanges.number


def main() -> None:
    """Trains, and writes what came of it."""
    folder = pathlib.Path(sys.argv[1])
    number = int(os.environ.get("TFDIST_ELASTIC", ":0").partition(":")[2])
    for plan in sys.argv[2:]:
        note_plan(plan, number)
    (folder / f"pid-{number}").write_text(str(os.getpid()))
    reached("start")

    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    class Model(keras.Sequential):
        def train_step(self, data):
            reached("trace")  # while Python traces the step
            return super().train_step(data)

        if STEP:
            train_step = tf.function(train_step, autograph=False)

    class Tracked(keras.layers.Layer):
        """Counts one number for each batch, as train steps of users' own do with their losses."""

        def __init__(self):
            super().__init__()
            self.size = keras.metrics.Mean(name="size")

        def call(self, x):
            self.size.update_state(keras.ops.mean(keras.ops.square(x)))
            return x

    times = []  # no attribute of a callback: others would get that

    class Moments(keras.callbacks.Callback):
        decides_in_batches = False

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if not strategy.group.is_apart:
                times.append(time.monotonic())
                time.sleep(SECONDS)
            done = self.epoch * -(-SAMPLES // BATCH) + batch + 1
            reached(f"step {done}", soon=True)
            reached(f"micro {done}")

        def on_test_batch_begin(self, batch, logs=None):
            if self.epoch:
                reached("evaluate", soon=True)

        def on_epoch_end(self, epoch, logs=None):
            reached(f"epoch {epoch + 1}")

    random = np.random.default_rng(SEED)
    x = random.normal(size=(SAMPLES, 6)).astype("float32")
    y = (x @ random.normal(size=(6, 3))).argmax(axis=1)

    def build():
        layers = [
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.BatchNormalization(synchronized=True),
            Tracked(),
            keras.layers.Dense(3),
        ]
        model = Model([keras.Input((6,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        eagerly = STEP == "eager function"
        model.compile(optimizer(), loss, metrics=["accuracy"], run_eagerly=eagerly)
        return model

    def optimizer():
        accumulated = None if "TFDIST_ELASTIC" in os.environ else ACCUMULATED
        return keras.optimizers.Adam(0.02, gradient_accumulation_steps=accumulated)

    keras.utils.set_random_seed(1)
    scope, callbacks, strategy = contextlib.nullcontext(), [], None
    if IS_SUMMED:
        from tfdist.strategies.multi_worker.reducers import engine

        engine.LEAST_FOR_REDUCERS = 0
    if "TFDIST_ELASTIC" in os.environ:
        strategy = tfdist.Strategy("auto", accumulation_steps=ACCUMULATED)
        reached("strategy")
        start_clock()
        watch_forming(strategy.group._connection)
        scope, callbacks = strategy.scope(), [Moments()]
    with scope:
        model = build()
    callbacks += [
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("loss", patience=100, restore_best_weights=True),
    ]
    options = {"batch_size": BATCH, "shuffle": False, "callbacks": callbacks}
    began = time.monotonic()
    history = model.fit(x, y, epochs=EPOCHS, validation_data=(x, y), verbose=2, **options).history
    seconds = time.monotonic() - began
    found = {
        "seconds": seconds,
        "weights": model.get_weights(),
        "history": {name: values for name, values in history.items() if name != "recoveries"},
        "iterations": int(model.optimizer.iterations.numpy()),
        "recoveries": history.get("recoveries", [0])[-1],
        "program": sys.orig_argv[1],
        "members": strategy.group.members if strategy else [0],
        "sums": _sums_by_reducers(strategy) if IS_SUMMED and strategy else 0,
        "times": times,
    }
    (folder / f"rank-{number}.pickle").write_bytes(pickle.dumps(found))
    print(json.dumps({"seconds": seconds}), flush=True)
    reached("end")


if __name__ == "__main__":
    main()
