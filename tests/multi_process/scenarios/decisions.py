"""Callbacks that decide in one rank, Ctrl-C, and weights that drift apart."""

import os
import pathlib
import shutil
import signal
import threading

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import LambdaCallback

import tfdist
from tests.multi_process.reference import BATCH, X, Y
from tests.multi_process.scenarios.common import error_of, fit, floats, state

HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
ONES = [np.ones((4, 1)), np.ones(1)]


def _metric_of_each_rank(value):
    """Writes `value(epoch)` to the logs, as the ranks' own metric "local"."""
    return LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(local=float(value(epoch))))


def early_stopping(here):
    """Rank 1's metric is best in the first epoch, rank 0's gets better all the time."""
    model = here.model()
    local = _metric_of_each_rank(lambda epoch: epoch if here.rank else -epoch)
    stop = keras.callbacks.EarlyStopping("local", mode="min", patience=1, restore_best_weights=True)
    history = fit(model, local, stop, epochs=6)
    return {"epochs": len(history["loss"]), "state": state(model)}


def reduce_on_plateau(here):
    """Rank 1's metric stays where it is."""
    model = here.model()
    local = _metric_of_each_rank(lambda epoch: 0.0 if here.rank else -epoch)
    reduce = keras.callbacks.ReduceLROnPlateau("local", mode="min", factor=0.5, patience=1)
    fit(model, local, reduce, epochs=4)
    return {"state": state(model)}


def learning_rate_at_end_of_epoch(here):
    """Rank 1 alone has a callback, which sets the rate after the first of three epochs."""
    model, callbacks = here.model(), []

    def set_rate(epoch, logs):
        if epoch == 0:
            model.optimizer.learning_rate = 0.02

    if here.rank == 1:
        callbacks.append(LambdaCallback(on_epoch_end=set_rate))
    fit(model, *callbacks, epochs=3)
    return {"state": state(model)}


def learning_rate_in_batch(here):
    """Rank 1 alone has a callback, which sets the rate after the third batch."""
    model, callbacks = here.model(), []

    def set_rate(batch, logs):
        if batch == 2:
            model.optimizer.learning_rate = 0.02

    if here.rank == 1:
        callbacks.append(LambdaCallback(on_train_batch_end=set_rate))
    fit(model, *callbacks, epochs=1)
    return {"state": state(model)}


def learning_rate_before_a_batch(here):
    """Rank 1 sets the rate too late for the step that it was meant for."""
    model, callbacks = here.model(), []

    def set_rate(batch, logs):
        if batch == 2:
            model.optimizer.learning_rate = 0.02

    if here.rank == 1:
        callbacks.append(LambdaCallback(on_train_batch_begin=set_rate))
    return {"error": error_of(fit, model, *callbacks), "state": state(model)}


def rates_that_differ(here):
    """Two ranks set another rate each."""
    model = here.model()

    def set_rate(epoch, logs):
        if here.rank >= here.size - 2:
            model.optimizer.learning_rate = 0.01 * (here.rank + 1)

    fit(model, LambdaCallback(on_epoch_end=set_rate))
    return {"state": state(model)}


def different_changes(here):
    """Rank 0 sets the weights, and rank 1 the rate, when the first of two epochs ends."""
    model = here.model()

    def change(epoch, logs):
        if epoch == 0 and here.rank == 0:
            model.set_weights(ONES)
        elif epoch == 0:
            model.optimizer.learning_rate = 0.02

    error = error_of(fit, model, LambdaCallback(on_epoch_end=change), epochs=2)
    return {"error": error, "state": state(model)}


def stop_in_batch(here):
    """Rank 1 stops in the third batch; all note what callbacks see of the batches."""
    model, seen = here.model(), []

    def note(batch, logs):
        seen.append(floats(logs))
        if here.rank == 1 and batch == 2:
            model.stop_training = True

    history = fit(model, LambdaCallback(on_train_batch_end=note), epochs=3)
    return {"batches": seen, "history": history, "state": state(model)}


class _StoppingCheckpoint(keras.callbacks.ModelCheckpoint):
    """A user's subclass of a callback of Keras that only writes."""

    stops = False

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.model.stop_training = self.stops and batch == 2


def stop_in_batch_by_a_subclass(here):
    """Rank 1 stops in the third batch, by a callback that derives from ModelCheckpoint."""
    model = here.model()
    callback = _StoppingCheckpoint(str(here.own / "never.keras"), save_freq=1000)
    callback.stops = here.rank == 1
    history = fit(model, callback, epochs=3)
    return {"epochs": len(history["loss"]), "state": state(model)}


def metrics_in_batches(here):
    """What callbacks see of all batches of two epochs, of which the last one is uneven."""
    model, seen = here.model(), []
    note = LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(floats(logs)))
    history = fit(model, note, epochs=2)
    return {"batches": seen, "history": history, "state": state(model)}


def weights_set_in_one_rank(here):
    """Rank 1 sets the weights in each hook: at the end of epoch 0, or the beginning of epoch 1."""
    states = {}
    for hook in HOOKS:
        model = here.model()

        def change(*args, hook=hook, model=model):
            if here.rank == 1 and args[0] == {"on_epoch_begin": 1, "on_epoch_end": 0}.get(
                hook, args[0]
            ):
                model.set_weights(ONES)

        fit(model, LambdaCallback(**{hook: change}), epochs=2)
        states[hook] = state(model)
    return states


def drift(here):
    """A weight of rank 1 changes where no callback may change it."""
    model = here.model()

    def change(batch, logs):
        if here.rank == 1 and batch == 2:
            model.layers[0].bias.assign(np.array([7.0]))

    return {"error": error_of(fit, model, LambdaCallback(on_train_batch_end=change))}


def ctrl_c(here):
    """Rank 1 gets SIGINT at the end of the second epoch of very many."""
    model, handler = here.model(), signal.getsignal(signal.SIGINT)
    seen = []

    def press(epoch, logs):
        seen.append(epoch)
        if here.rank == 1 and epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)

    message = _interrupted(fit, model, LambdaCallback(on_epoch_end=press), epochs=10**6)
    found = {"fit": message, "epochs": len(seen), "stopped": state(model)}
    found["handler restored"] = signal.getsignal(signal.SIGINT) is handler
    model = here.model()
    found |= {"history": fit(model), "again": state(model)}
    return found


def ctrl_c_in_evaluate(here):
    """Rank 1 gets SIGINT while all evaluate data without end."""
    model, handler = here.model(), signal.getsignal(signal.SIGINT)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).repeat()
    if here.rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    message = _interrupted(model.evaluate, data, steps=10**7, verbose=0)
    restored = signal.getsignal(signal.SIGINT) is handler
    again = floats(model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True))
    return {"evaluate": message, "handler restored": restored, "again": again}


def _interrupted(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except KeyboardInterrupt as error:
        return f"KeyboardInterrupt: {error}"
    return ""


class _Died(Exception):
    pass


def _dies(epoch_of_death, before=lambda epoch: None):
    def die(epoch, logs=None):
        before(epoch)
        if epoch == epoch_of_death:
            raise _Died

    return LambdaCallback(on_epoch_begin=die)


def backups_of_different_epochs(here):
    """All die in the fourth epoch; then rank 1 finds a backup of the first one in its own folder.

    What rank 0 wrote after one epoch is copied to rank 1.
    """
    folders = [str(here.folder / f"backup-{rank}") for rank in range(2)]

    def copy(epoch):
        if epoch == 1 and here.rank == 0:
            shutil.copytree(folders[0], folders[1], ignore=shutil.ignore_patterns(".*"))

    model = here.model()
    backup = keras.callbacks.BackupAndRestore(folders[here.rank])
    death = error_of(fit, model, backup, _dies(3, copy), epochs=5)
    here.meet()
    written = [_content(folder) for folder in folders]
    here.meet()
    model, begun = here.model(), []
    note = LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    backup = keras.callbacks.BackupAndRestore(folders[here.rank])
    history = fit(model, backup, note, epochs=5)
    here.meet()
    return {
        "death": death,
        "written": [list(content) for content in written],
        "begun": begun,
        "losses": history["loss"],
        "state": state(model),
        "left": [_content(folder) == content for folder, content in zip(folders, written)],
    }


def _content(folder):
    paths = sorted(pathlib.Path(folder).glob("*"))
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def callbacks_used_again_after_an_error(here):
    """All die in the third epoch of four, and go on with the same callbacks."""
    model = here.model()
    backup = keras.callbacks.BackupAndRestore(str(here.own / "backup"))
    logger = keras.callbacks.CSVLogger(str(here.own / "log.csv"), append=True)
    death = error_of(fit, model, backup, logger, _dies(2), epochs=4)
    paths = [backup.backup_dir, logger.filename]
    model = here.model()
    history = fit(model, backup, logger, epochs=4)
    lines = (here.own / "log.csv").read_text().splitlines() if here.rank == 0 else []
    return {
        "death": death,
        "paths": [os.path.relpath(path, here.own) for path in paths],
        "epochs": len(history["loss"]),
        "lines": len(lines),
        "state": state(model),
    }


def weights_loaded_after_an_error(here):
    """A callback fails in all ranks; later rank 0 alone sees a file of weights."""
    model = here.model()
    model.set_weights(ONES)
    path = here.folder / "ones.weights.h5"
    model.save_weights(path)
    here.meet()
    death = error_of(fit, here.model(), _dies(0))
    model = here.model()
    model.load_weights(path if here.rank == 0 else here.folder / "missing.weights.h5")
    return {"death": death, "state": state(model)}


def not_a_number(here):
    """A feature of rank 1's part of the third batch is infinite."""
    model, stop = here.model(), tfdist.callbacks.TerminateOnNaN()
    x = X.copy()
    x[2 * BATCH + BATCH - 1] = np.inf
    history = model.fit(x, Y, BATCH, 3, verbose=0, shuffle=False, callbacks=[stop])
    return {
        "epochs": len(history.epoch),
        "iterations": int(model.optimizer.iterations.numpy()),
        "findings": stop.findings,
    }
