"""When rank 0 of an elastic job is gone, another rank goes on with its files and its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from tfdist.processes.backups import BackupFolder
from tfdist.processes.files import CallbackFiles


class Succession:
    """Lets the callbacks of this process write and show what those of rank 0 did.

    Args:
        callbacks: the callbacks of one `fit`, without those that show progress.
        progress: those that show progress.
        files: where the callbacks write until then.
    """

    def __init__(
        self,
        callbacks: list[keras.callbacks.Callback],
        progress: list[keras.callbacks.Callback],
        files: CallbackFiles,
    ):
        self._callbacks = callbacks
        self._progress = progress
        self._files = files

    def happen(
        self, params: dict, model: keras.Model, epoch: int | None
    ) -> tuple[CallbackFiles, list[keras.callbacks.Callback]]:
        """Takes over; called between two events of the callbacks.

        What has happened so far is in the files of rank 0, but for what it was about to write.

        Args:
            params: Keras' parameters of the run.
            model: the model.
            epoch: the epoch that has begun; None between epochs.

        Returns:
            Where the callbacks write from now on, and the callbacks that are to run.
        """
        tables = [c for c in self._callbacks if isinstance(c, keras.callbacks.CSVLogger)]
        rows = [_rows(table) for table in tables]
        self._files.restore()
        for table, own in zip(tables, rows):
            _go_on_with(table, own)
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.TensorBoard):
                callback.set_model(model)  # begins new files
            elif isinstance(callback, keras.callbacks.BackupAndRestore):
                BackupFolder(Path(callback.backup_dir)).end_interrupted()
        files = CallbackFiles(self._callbacks, is_chief=True)
        files.stage()
        for callback in self._progress:
            callback.set_params(params)
            callback.set_model(model)
            callback.on_train_begin()
            if epoch is not None:
                callback.on_epoch_begin(epoch)
        return files, [*files.with_commits(), *self._progress]


class LastSaved:
    """What rank 0 was to save at the end of the last epoch; the next rank 0 saves it again.

    Args:
        callbacks: those of one `fit`.
    """

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        self._savers = [c for c in callbacks if isinstance(c, keras.callbacks.ModelCheckpoint)]
        self._epoch: tuple[int, dict] | None = None
        self._bests: list[Any] = []

    def begin(self, epoch: int, logs: dict) -> None:
        """Called at the end of an epoch, before the callbacks save."""
        self._epoch = (epoch, dict(logs))
        self._bests = [saver.best for saver in self._savers]

    def forget(self) -> None:
        """Called when the weights are others."""
        self._epoch = None

    def save_again(self) -> None:
        """Saves, if the weights are still those of the end of that epoch."""
        for saver, best in zip(self._savers, self._bests):
            if self._epoch is not None:
                saver.best = best
                saver.on_epoch_end(*self._epoch)


def _rows(table: keras.callbacks.CSVLogger) -> list[str]:
    """The lines that this process has written aside."""
    if table.csv_file is None or table.csv_file.closed:
        return []
    table.csv_file.flush()
    return Path(table.filename).read_text().splitlines(keepends=True)


def _go_on_with(table: keras.callbacks.CSVLogger, rows: list[str]) -> None:
    """Adds the rows that rank 0 could not write any more, and goes on below them.

    Args:
        table: writes to the user's file again.
        rows: the lines that it has written aside: the header, and a row for each epoch.
    """
    if table.csv_file is None or table.csv_file.closed:
        return
    table.csv_file.close()
    path = Path(table.filename)
    if not table.append:  # nothing else is in it, but what an earlier job has written
        path.write_text("")
    there = path.read_text().splitlines() if path.exists() else []
    epochs = [row.partition(table.sep)[0] for row in rows]
    last = there[-1].partition(table.sep)[0] if there else ""
    missing = rows[epochs.index(last) + 1 :] if last in epochs else rows
    if there and missing == rows:
        missing = rows[1:]  # the file has a header
    table.csv_file = path.open("a")
    table.csv_file.writelines(missing)
    table.csv_file.flush()
    table.append_header = not there and not missing
    table.writer = None
