"""Files of callbacks: one process writes them, and only whole backups become visible."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import keras

from tfdist import compat
from tfdist.processes.backups import BackupFolder
from tfdist.processes.contracts import KerasRunner
from tfdist.processes.whole_files import is_remote


class CallbackFiles:
    """Where the callbacks of one `fit` write: the chief to the given paths, others aside.

    Args:
        callbacks: the callbacks.
        is_chief: whether this process writes files that stay.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback], is_chief: bool):
        self._callbacks = callbacks
        # Remote file systems cannot move files in one step, so backups there are written in place.
        self._backups = {
            id(c): Backup(c)
            for c in callbacks
            if is_chief
            and isinstance(c, keras.callbacks.BackupAndRestore)
            and not is_remote(c.backup_dir)
        }
        self._undo: list[Callable[[], None]] = []
        self._elsewhere: tempfile.TemporaryDirectory | None = None
        if not is_chief:
            for callback in callbacks:
                self._turn_aside(callback)

    def _turn_aside(self, callback: keras.callbacks.Callback) -> None:
        """Makes a callback write to a temporary folder, in a process that is not the chief."""
        target = ""
        if isinstance(callback, keras.callbacks.CSVLogger):
            target = callback.filename
        elif isinstance(callback, keras.callbacks.TensorBoard):
            target = callback.log_dir
        elif isinstance(callback, keras.callbacks.BackupAndRestore):
            target = callback.backup_dir
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            # It writes nothing here, but makes the folder, which fails if another process does too.
            target = os.path.dirname(callback.filepath)
        if target:
            self._elsewhere = self._elsewhere or tempfile.TemporaryDirectory(prefix="tfdist-")
            aside = pathlib.Path(self._elsewhere.name, str(len(self._undo)))
            self._undo.append(_redirect(callback, target, str(aside)))

    def silence(self) -> None:
        """Makes the callbacks print nothing, until their paths are restored."""
        for callback in self._callbacks:
            verbose = getattr(callback, "verbose", 0)
            if verbose:
                callback.verbose = 0
                self._undo.append(functools.partial(setattr, callback, "verbose", verbose))

    def with_commits(self) -> list[keras.callbacks.Callback]:
        """The callbacks; a `Commit` follows each one whose backups it makes visible."""
        found = []
        for callback in self._callbacks:
            found.append(callback)
            if id(callback) in self._backups:
                found.append(Commit(self._backups[id(callback)]))
        return found

    def stage(self) -> None:
        """From now on only whole backups become visible."""
        for backup in self._backups.values():
            backup.stage()

    def recover(self) -> None:
        """Repairs the backups that a killed process has left.

        Raises:
            ValueError: when there are backups, but no whole one.
        """
        for backup in self._backups.values():
            backup.folder.recover()

    def begin_epoch(self, epoch: int) -> None:
        """Gives backups in the middle of the epoch the epoch's number."""
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                compat.set_backup_epoch(callback, epoch)

    def end_training(self) -> None:
        """Lets callbacks clean up their own files; other files stay."""
        self.restore()
        for backup in self._backups.values():
            self._undo.append(backup.clean_up())

    def restore(self) -> None:
        """Gives the callbacks their own paths back."""
        while self._undo:
            self._undo.pop()()
        for backup in self._backups.values():
            backup.unstage()
        if self._elsewhere is not None:
            self._elsewhere.cleanup()


class Backup:
    """The backups of one BackupAndRestore.

    Args:
        callback: the callback.

    Attributes:
        folder: the folder to which the callback writes.
    """

    def __init__(self, callback: keras.callbacks.BackupAndRestore):
        self._callback = callback
        self._undo: Callable[[], None] | None = None
        self.folder = BackupFolder(pathlib.Path(callback.backup_dir))

    def stage(self) -> None:
        """From now on backups become visible only through `folder.commit`."""
        old, new = self._callback.backup_dir, str(self.folder.staging)
        self._undo = self._undo or _redirect(self._callback, old, new)

    def unstage(self) -> None:
        """Gives the callback its own paths back."""
        if self._undo is not None:
            self._undo()
            self._undo = None
            self.folder.discard_incomplete()

    def clean_up(self) -> Callable[[], None]:
        """Removes the backups if the callback would; returns a function that restores its setting.

        Keras would remove the whole folder, with everybody's files in it. Keras would also raise an
        error for a folder that it cannot remove: a link, or one where a disk is mounted.
        """
        callback = self._callback
        if not callback.delete_checkpoint:
            return lambda: None
        self.folder.delete()
        callback.delete_checkpoint = False
        return lambda: setattr(callback, "delete_checkpoint", True)


class Recover(keras.callbacks.Callback):
    """Runs before the callbacks of a `fit` in one process, and gives them whole backups.

    Args:
        strategy: the strategy.
        files: where the callbacks write.
    """

    def __init__(self, strategy: KerasRunner, files: CallbackFiles):
        super().__init__()
        self._strategy = strategy
        self._files = files

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Repairs the backups that a killed process has left."""
        self._strategy.callback_files.append(self._files)
        self._files.recover()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Gives backups in the middle of the epoch the epoch's number."""
        self._files.begin_epoch(epoch)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Lets the callbacks clean up their files."""
        self._files.end_training()


class Commit(keras.callbacks.Callback):
    """Runs after a BackupAndRestore and makes its backups visible.

    Args:
        backup: the backups of that callback.
    """

    decides_in_batches = False

    def __init__(self, backup: Backup):
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: dict | None = None) -> None:
        """From now on only whole backups become visible; the last one has been restored already."""
        self._backup.stage()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Makes a backup visible."""
        self._backup.folder.commit()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Makes a backup visible."""
        self._backup.folder.commit()


def protect(strategy: KerasRunner, callback_list: keras.callbacks.CallbackList) -> None:
    """Lets the callbacks of a `fit` in one process write whole backups.

    Args:
        strategy: the strategy of one process.
        callback_list: the callbacks of one `fit`, `evaluate` or `predict`.
    """
    callbacks = callback_list.callbacks
    backups = [c for c in callbacks if isinstance(c, keras.callbacks.BackupAndRestore)]
    if backups and not isinstance(callbacks[0], Recover):
        files = CallbackFiles(list(callbacks), is_chief=True)
        callbacks[:] = [Recover(strategy, files), *files.with_commits()]


@contextlib.contextmanager
def restored(strategy: KerasRunner) -> Iterator[None]:
    """Gives callbacks their own paths back when a run of `strategy` ends, also with an error."""
    before = len(strategy.callback_files)
    try:
        yield
    finally:
        while len(strategy.callback_files) > before:
            strategy.callback_files.pop().restore()


def _redirect(
    callback: keras.callbacks.Callback, old: str | os.PathLike, new: str
) -> Callable[[], None]:
    """Replaces `old` by `new` in all paths that `callback` keeps; returns a function to undo it."""
    start = os.fspath(old).rstrip("/")
    paths = {
        name: path
        for name, path in vars(callback).items()
        if isinstance(path, (str, os.PathLike))
        and (os.fspath(path) == start or os.fspath(path).startswith(f"{start}/"))
    }
    moved = {name: new + os.fspath(path)[len(start) :] for name, path in paths.items()}
    vars(callback).update({name: path.rstrip("/") for name, path in moved.items()})
    return lambda: vars(callback).update(paths)
