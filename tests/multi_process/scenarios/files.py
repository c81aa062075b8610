"""Files that callbacks and models write and read, and the progress that is shown."""

import contextlib
import io
import pathlib
import warnings

import keras
import numpy as np
from keras.callbacks import LambdaCallback

from tests.multi_process.reference import BATCH, X, Y
from tests.multi_process.scenarios.common import error_of, fit, linear, restart, state

_PATHS = ("filepath", "backup_dir", "filename", "log_dir", "_weights_path")
ONES = [np.ones((4, 1)), np.ones(1)]


def _callbacks(folder):
    """One of each kind that writes."""
    folder = str(folder)
    return [
        keras.callbacks.ModelCheckpoint(f"{folder}/models/{{epoch}}.keras"),
        keras.callbacks.ModelCheckpoint(
            f"{folder}/best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger(f"{folder}/log.csv"),
        keras.callbacks.TensorBoard(f"{folder}/board", update_freq=2),
    ]


def _paths(callbacks):
    """All paths that callbacks were made with."""
    return [vars(callback).get(name) for callback in callbacks for name in _PATHS]


def _files(folder):
    """The files below a folder, without the numbers in the names of TensorBoard's."""
    paths = [path.relative_to(folder) for path in pathlib.Path(folder).rglob("*")]
    names = [str(path) for path in paths if (folder / path).is_file()]
    return sorted("board/events" if "events.out" in name else name for name in names)


def callbacks(here):
    """Two epochs with all callbacks that write, in each rank to a folder of its own."""
    model, own = here.model(), here.own
    writers = _callbacks(own)
    before = _paths(writers)
    history = fit(model, *writers, epochs=2)
    return {
        "folder": str(own),
        "files": _files(own),
        "paths kept": _paths(writers) == before,
        "history": history,
        "state": state(model),
    }


def callbacks_in_one_folder(here):
    """The same in one folder, which the ranks look at when all have come to the end."""
    model = here.model()
    fit(model, *_callbacks(here.folder), epochs=2)
    here.meet()
    return {"files": _files(here.folder), "state": state(model)}


def backups_in_other_spellings(here):
    """Backups into a folder with a slash at its end, and into a `pathlib.Path`."""
    model, own = here.model(), here.own
    folders = {"slash": f"{own}/slash/", "path": own / "path"}
    kept = []
    for folder in folders.values():
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        fit(model, backup, epochs=1)
        kept.append(backup.backup_dir == folder)
    return {"files": _files(own), "paths kept": kept, "state": state(model)}


def _damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damaged_backups(here):
    """The newest backup is damaged, then both; each rank has a folder of its own."""
    model, own = here.model(), here.own
    backup = keras.callbacks.BackupAndRestore(own / "backup", delete_checkpoint=False)
    fit(model, backup, epochs=2)
    newest, previous = (own / "backup" / name for name in ("", "previous"))
    if here.rank == 0:
        _damage(newest / "latest.weights.h5")
    restart(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, backup, epochs=3)
    found = {"warned": [str(w.message) for w in caught], "state": state(model)}
    if here.rank == 0:
        _damage(newest / "training_metadata.json")
        (previous / "SHA256SUMS").write_text("")
    found["error"] = error_of(fit, model, backup, epochs=4)
    found["state after"] = state(model)
    found["paths kept"] = backup.backup_dir == own / "backup"
    return found


def saving(here):
    """Three batches of four, with two per update; saved in each rank to a folder of its own."""
    strategy = here.make(accumulation_steps=2)
    model, own = linear(strategy), here.own
    saved_in_batch = keras.callbacks.ModelCheckpoint(
        f"{own}/batch.weights.h5", save_freq=3, save_weights_only=True
    )
    model.fit(X[:48], Y[:48], BATCH, verbose=0, shuffle=False, callbacks=[saved_in_batch])
    model.save(own / "model.keras")
    model.save_weights(own / "model.weights.h5")
    return {"folder": str(own), "files": _files(own), "state": state(model)}


def saving_in_other_formats(here):
    """HDF5 and TensorFlow's format, while gradients wait for their update."""
    model, own = linear(here.make(accumulation_steps=2)), here.own
    model.fit(X[:48], Y[:48], BATCH, verbose=0, shuffle=False)
    model.save(own / "model.h5")
    model.export(own / "exported", verbose=False)
    return {"folder": str(own), "files": _files(own), "state": state(model)}


def _saved(here, model):
    """A file that rank 0 alone sees, of the model with all weights 1 after one epoch; its state."""
    model.set_weights(ONES)
    fit(model)
    model.save(here.own / "ones.keras")
    model.save_weights(here.own / "ones.weights.h5")
    return state(model)


def loading(here):
    """Weights from a file that only rank 0 sees; then from one that none sees."""
    model = here.model()
    found = {"saved": _saved(here, model)}
    for name in ("ones.weights.h5", "ones.keras"):
        restart(model)
        model.load_weights(here.own / name)
        found[name] = state(model)
    found["missing"] = error_of(model.load_weights, here.own / "missing.weights.h5")
    found["after"] = state(model)
    found["history"] = fit(model)
    return found


def loading_a_whole_model(here):
    """All ranks read the file of rank 0."""
    _saved(here, here.model())
    here.meet()
    with here.strategy.scope():
        model = keras.saving.load_model(here.folder / "0" / "ones.keras")
    found = {"loaded": state(model)}
    fit(model)
    return {**found, "trained": state(model)}


def resumed_accumulation(here):
    """Three batches of four are trained and saved by rank 0, the fourth after loading."""
    model = linear(here.make(accumulation_steps=2))
    model.fit(X[:48], Y[:48], BATCH, verbose=0, shuffle=False)
    path = here.own / "model.weights.h5"
    model.save_weights(path)
    restart(model)
    model.load_weights(path)
    model.fit(X[48:64], Y[48:64], BATCH, verbose=0, shuffle=False)
    return {"state": state(model)}


def horovods_habit(here):
    """Rank 0 alone is given callbacks that write, and alone saves the model, as Horovod's guide."""
    model, own = here.model(), here.own
    writers = _callbacks(own) if here.rank == 0 else []
    fit(model, *writers, epochs=2)
    if here.rank == 0:
        model.save(own / "model.keras")
        model.save_weights(own / "model.weights.h5")
    return {"files": _files(own), "state": state(model)}


def horovods_habit_with_accumulation(here):
    """The same with gradients that wait for their update in each rank."""
    model, own = linear(here.make(accumulation_steps=2)), here.own
    path = str(own / "{epoch}.weights.h5")
    writers = [keras.callbacks.ModelCheckpoint(path, save_weights_only=True)]
    fit(model, *(writers if here.rank == 0 else []), epochs=2)
    if here.rank == 0:
        model.save(own / "model.keras")
    return {"files": _files(own), "state": state(model)}


def saved_by_another_rank_than_the_chief(here):
    """Only rank 1 has a callback that saves."""
    path = str(here.folder / "{epoch}.weights.h5")
    kinds = {
        "checkpoint": keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        "backup": keras.callbacks.BackupAndRestore(here.folder / "backup"),
    }
    return {
        name: error_of(fit, here.model(), *([callback] if here.rank == 1 else []))
        for name, callback in kinds.items()
    }


def best_of_each_rank(here):
    """Rank 0's metric gets better in each epoch, rank 1's in none; gradients wait for an update."""
    model = linear(here.make(accumulation_steps=2))
    local = LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(local=float(epoch if here.rank else -epoch))
    )
    path = str(here.own / "{epoch}.weights.h5")
    best = keras.callbacks.ModelCheckpoint(
        path, "local", mode="min", save_best_only=True, save_weights_only=True
    )
    fit(model, local, best, epochs=3)
    return {"files": _files(here.own), "state": state(model)}


def progress(here):
    """What is printed; a strategy with `log_all_ranks` prints everywhere."""
    found = {}
    for name, strategy in (
        ("chief", here.strategy),
        ("all", here.make(log_all_ranks=True)),
    ):
        model = here.model() if strategy is here.strategy else linear(strategy)
        path = str(here.own / "model.keras")
        talkers = [
            keras.callbacks.ModelCheckpoint(path, verbose=1),
            keras.callbacks.EarlyStopping("loss", mode="max", verbose=1),
        ]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            fit(model, *talkers, verbose=2, epochs=3)
            fit(model, verbose=1)
            model.evaluate(X, Y, verbose=2)
            model.predict(X, verbose=2)
        found[name] = out.getvalue()
    return found


class _LoadsAndRuns(keras.callbacks.Callback):
    """Evaluates and predicts with the weights of a file, after each epoch."""

    def __init__(self, path):
        super().__init__()
        self._path, self.losses, self.outputs = path, [], []

    def on_epoch_end(self, epoch, logs=None):
        self.model.load_weights(self._path)
        self.losses.append(self.model.evaluate(X, Y, batch_size=BATCH, verbose=0)[0])
        self.outputs.append(self.model.predict(X, batch_size=BATCH, verbose=0))
        self.model.set_weights(ONES)
        self.losses.append(self.model.evaluate(X, Y, batch_size=BATCH, verbose=0)[0])


def running_what_a_callback_has_loaded(here):
    """Losses and outputs of weights that a callback reads from a file of rank 0."""
    model = here.model()
    path = here.own / "half.weights.h5"
    model.set_weights([0.5 * ones for ones in ONES])
    model.save_weights(path)
    runs = _LoadsAndRuns(path)
    fit(model, runs, epochs=2)
    return {"losses": runs.losses, "outputs": runs.outputs}


def another_model_that_a_callback_loads(here):
    """The weights, after training, of a second model that a callback reads."""
    model, other = here.model(), linear(here.strategy)
    path = here.own / "half.weights.h5"
    other.set_weights([0.5 * ones for ones in ONES])
    other.save_weights(path)
    restart(other)
    loads = LambdaCallback(on_epoch_begin=lambda epoch, logs: other.load_weights(path))
    fit(model, loads)
    return {"weights": other.get_weights()}
