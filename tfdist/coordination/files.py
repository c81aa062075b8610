"""Files of callbacks and models: one process writes them, and only whole ones are seen.

Keras' BackupAndRestore writes the weights first and the epoch that they belong to next; a process
killed in between, or in the middle of a file, would leave a pair that does not belong together. So
it writes into a folder of its own, whose files are moved when both are whole: the weights first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras

_STAGING = ".incomplete"


class CallbackFiles:
    """Where the callbacks of one `fit` write.

    Args:
        callbacks: the callbacks.
        is_chief: whether this process writes files that stay.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback], is_chief: bool):
        self._is_chief = is_chief
        self._callbacks = callbacks
        # Where files cannot be moved at once, backups are written in their place.
        self._backups = [
            c
            for c in callbacks
            if isinstance(c, keras.callbacks.BackupAndRestore) and not _is_remote(c.backup_dir)
        ]
        self._folders = [pathlib.Path(backup.backup_dir) for backup in self._backups]
        self._undo: list[Callable[[], None]] = []
        self._elsewhere: tempfile.TemporaryDirectory | None = None
        if not is_chief:
            for callback in callbacks:
                self._turn_aside(callback)

    def _turn_aside(self, callback: keras.callbacks.Callback) -> None:
        """Lets a callback of a process that is not the chief write where nobody looks."""
        target = ""
        if isinstance(callback, keras.callbacks.CSVLogger):
            target = callback.filename
        elif isinstance(callback, keras.callbacks.TensorBoard):
            target = callback.log_dir
        elif isinstance(callback, keras.callbacks.BackupAndRestore):
            target = callback.backup_dir
        elif isinstance(callback, keras.callbacks.ModelCheckpoint):
            # It writes nothing here, but makes the folder, if no other process makes it meanwhile.
            target = os.path.dirname(callback.filepath)
        if target:
            self._elsewhere = self._elsewhere or tempfile.TemporaryDirectory(prefix="tfdist-")
            aside = pathlib.Path(self._elsewhere.name, str(len(self._undo)))
            self._redirect(callback, target, str(aside))

    def _redirect(
        self, callback: keras.callbacks.Callback, old: str | os.PathLike, new: str
    ) -> None:
        """Replaces `old` by `new` in all paths that `callback` keeps."""
        start = os.fspath(old).rstrip("/")
        paths = {
            name: path
            for name, path in vars(callback).items()
            if isinstance(path, (str, os.PathLike))
            and (os.fspath(path) == start or os.fspath(path).startswith(f"{start}/"))
        }
        moved = {name: new + os.fspath(path)[len(start) :] for name, path in paths.items()}
        vars(callback).update({name: path.rstrip("/") for name, path in moved.items()})
        self._undo.append(lambda: vars(callback).update(paths))

    def silence(self) -> None:
        """Lets the callbacks say nothing, until their paths are restored."""
        for callback in self._callbacks:
            verbose = getattr(callback, "verbose", 0)
            if verbose:
                callback.verbose = 0
                self._undo.append(functools.partial(setattr, callback, "verbose", verbose))

    def recover(self) -> None:
        """Completes a backup that was whole, but not yet in its place, when the chief died."""
        if self._is_chief:
            for folder in self._folders:
                staging = folder / _STAGING
                if staging.exists() and not list(staging.glob("*.weights.h5")):
                    self._commit(folder)
                shutil.rmtree(staging, ignore_errors=True)

    def stage(self) -> None:
        """From now on backups become visible with `commit` only."""
        if self._is_chief:
            for backup, folder in zip(self._backups, self._folders):
                self._redirect(backup, backup.backup_dir, str(folder / _STAGING))

    def commit(self) -> None:
        """Puts the backups written since the last time in their places."""
        if self._is_chief:
            for folder in self._folders:
                self._commit(folder)

    def _commit(self, folder: pathlib.Path) -> None:
        staged = list((folder / _STAGING).glob("*"))
        for path in sorted(staged, key=lambda path: path.suffix != ".h5"):
            os.replace(path, folder / path.name)

    def restore(self) -> None:
        """Gives the callbacks their own paths back."""
        while self._undo:
            self._undo.pop()()
        for folder in self._folders if self._is_chief else ():
            with contextlib.suppress(OSError):  # there is none, or it holds what is to be recovered
                (folder / _STAGING).rmdir()
        if self._elsewhere is not None:
            self._elsewhere.cleanup()


def _is_remote(path: str | os.PathLike) -> bool:
    return "://" in os.fspath(path)


@contextlib.contextmanager
def whole_file(path: Any) -> Iterator[Any]:
    """A path to write to instead of `path`, which it replaces when it is whole.

    Folders, open files and remote ones are written directly.
    """
    is_path = isinstance(path, (str, os.PathLike)) and not _is_remote(path)
    if not is_path or not str(path).endswith((".h5", ".hdf5", ".keras")) or os.path.isdir(path):
        yield path
        return
    path = pathlib.Path(path)
    suffix = "".join(path.suffixes[-2:])
    partial = path.with_name(f".{path.name.removesuffix(suffix)}.incomplete{suffix}")
    try:
        yield str(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
