"""A folder of backups in which only a whole backup ever replaces the newest one.

Keras' BackupAndRestore first writes the weights, then the epoch that the weights belong to. If the
process is killed in between, or in the middle of a file, the files do not belong together. So
tfdist writes the next backup aside, adds a file of checksums when the backup is whole, and then
moves the backup into place:

    latest.weights.h5, training_metadata.json, SHA256SUMS   the newest backup, under Keras' names
    previous/                                               the backup before it: the same files
    .incomplete/                                            where the next backup is written
    damaged/                                                files that could not be used any more

SHA256SUMS says which files belong together, in the format of `sha256sum --check`. It is the last
file of a backup to be written, and the last to be moved.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import warnings
from collections.abc import Iterable

import h5py

_SUMS = "SHA256SUMS"
_WEIGHTS, _METADATA = "latest.weights.h5", "training_metadata.json"


class BackupFolder:
    """The folder of one BackupAndRestore; safe if the process is killed anywhere in any method.

    Args:
        path: the folder, which need not exist.

    Attributes:
        staging: the folder in which to write the next backup.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        self.staging = path / ".incomplete"
        self._previous = path / "previous"
        self._damaged = path / "damaged"

    def recover(self) -> None:
        """Puts the newest whole backup in place, if there was any backup.

        Warns if the backup that was in place has to be replaced by an older one.

        Raises:
            ValueError: when no backup is whole.
        """
        self.end_interrupted()
        self._take_over_double_checkpoint()
        if not any((self._path / name).exists() for name in self._names(self._path)):
            self._start_anew()
            return
        damage = self._damage(self._path)
        if damage and self._was_rewritten():
            (self._path / _SUMS).unlink()
            _warn(
                f"The backup in {self._path} was written anew without checksums since tfdist "
                "wrote one. It is used unchecked."
            )
        elif damage:
            self._fall_back(damage)

    def end_interrupted(self) -> None:
        """Puts the whole backup of a killed process in place, or removes what is not whole."""
        if (self.staging / _SUMS).exists() and not self._damage(self.staging, self._path):
            self._publish()
        shutil.rmtree(self.staging, ignore_errors=True)

    def commit(self) -> None:
        """Puts the files written to `staging` since the last call in place, as one backup."""
        if not self.staging.is_dir():  # the usual case, as this runs after each batch
            return
        names = [path.name for path in self.staging.glob("[!.]*")]
        if not names:
            return
        before = [name for name in (_WEIGHTS, _METADATA) if (self._path / name).exists()]
        if before and not (self._path / _SUMS).exists():
            self._write_sums(self._path, before)
        self._write_sums(self.staging, names)
        self._publish()

    def delete(self) -> None:
        """Removes the backups, and the folder if it holds nothing else and is no link or mount."""
        if self._path.exists():
            # Publishes an empty backup: from here on, wherever this is killed, no backup is left.
            self._write_sums(self.staging, [])
            self._publish()
            for name in (_WEIGHTS, _METADATA):
                for path in (self._path / name, _of_keras(self._path / name)):
                    path.unlink(missing_ok=True)
            for folder in (self._previous, self._damaged):
                shutil.rmtree(folder, ignore_errors=True)
            (self._path / _SUMS).unlink()
            with contextlib.suppress(OSError):
                self._path.rmdir()

    def discard_incomplete(self) -> None:
        """Removes a backup that was not whole when training ended."""
        if not (self.staging / _SUMS).exists():  # a whole one is completed by `recover`
            shutil.rmtree(self.staging, ignore_errors=True)

    def _write_sums(self, folder: pathlib.Path, names: Iterable[str]) -> None:
        """Writes the checksums of files in one atomic step, once the files are on the disk."""
        lines = []
        for name in sorted(names):
            flush(folder / name)
            lines.append(f"{_checksum(folder / name)}  {name}\n")
        self.staging.mkdir(exist_ok=True)
        partial = self.staging / f".{_SUMS}"
        partial.write_text("".join(lines))
        flush(partial)
        os.replace(partial, folder / _SUMS)
        flush(folder)

    def _publish(self) -> None:
        """Moves the whole backup in `staging` into place; continues an interrupted move."""
        _move(self._path, self._previous)
        _move(self.staging, self._path)
        shutil.rmtree(self.staging)

    def _take_over_double_checkpoint(self) -> None:
        """Makes the backup kept by Keras' `double_checkpoint` the previous one, as it is newer."""
        kept = {name: _of_keras(self._path / name) for name in (_WEIGHTS, _METADATA)}
        if all(path.exists() for path in kept.values()):
            self._previous.mkdir(exist_ok=True)
            (self._previous / _SUMS).unlink(missing_ok=True)
            for name, path in kept.items():
                os.replace(path, self._previous / name)

    def _start_anew(self) -> None:
        (self._path / _SUMS).unlink(missing_ok=True)
        if self._previous.exists():
            _warn(
                f"{self._path} holds no backup any more, so training starts anew. To go on from "
                f"the backup before, stop, and move the files of {self._previous} there."
            )

    def _fall_back(self, damage: str) -> None:
        """Puts the previous backup in place of the damaged one, which is moved to `damaged/`."""
        also = self._damage(self._previous) if self._previous.exists() else "no previous backup"
        if also:
            raise ValueError(
                f"There is no whole backup in {self._path} to go on from. Delete the folder to "
                f"start anew, or put a whole backup there. Received: {damage}; {also}"
            )
        _warn(
            f"A backup is damaged: {damage}. Training goes on from the backup before it; the "
            f"damaged files are kept in {self._damaged}."
        )
        if not (self._previous / _SUMS).exists():
            self._write_sums(self._previous, [_WEIGHTS, _METADATA])
        os.rename(self._previous, self.staging)
        self._damaged.mkdir(exist_ok=True)
        for name in (*self._names(self._path), _SUMS):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._path / name, self._damaged / name)
        self._publish()

    def _names(self, folder: pathlib.Path) -> list[str]:
        """The names of a backup's files in `folder`: Keras' names, and all names with checksums."""
        return list(dict.fromkeys([_WEIGHTS, _METADATA, *(_read_sums(folder) or ())]))

    def _damage(self, folder: pathlib.Path, moved_to: pathlib.Path | None = None) -> str | None:
        """What is wrong with the backup in `folder`; None if no damage can be seen.

        Args:
            folder: the folder.
            moved_to: where missing files may have been moved already.
        """
        sums = _read_sums(folder)
        if sums is None:
            return _visible_damage(folder)
        for name in self._names(folder):
            path = folder / name
            if moved_to and not path.exists():
                path = moved_to / name
            if name not in sums:
                if path.parent == folder and path.exists():
                    return f"{path} has no checksum in {folder / _SUMS}"
            elif not path.exists():
                return f"{path} is missing"
            elif (found := _checksum(path)) != sums[name]:
                return f"{path} has the SHA-256 checksum {found}, expected {sums[name]}"
        return None

    def _was_rewritten(self) -> bool:
        """Whether Keras without tfdist has replaced the backup and left tfdist's checksums.

        In that case all files differ from their checksums, and no file is visibly damaged.
        """
        sums = _read_sums(self._path) or {}
        paths = {name: self._path / name for name in (_WEIGHTS, _METADATA)}
        return not _visible_damage(self._path) and all(
            name in sums and _checksum(path) != sums[name] for name, path in paths.items()
        )


def flush(path: str | os.PathLike) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not on every file system
            raise
    finally:
        os.close(descriptor)


def _move(source: pathlib.Path, target: pathlib.Path) -> None:
    """Moves the files listed in the checksums; the checksums move last, so a retry can finish."""
    names = _read_sums(source)
    if names is None:
        return
    target.mkdir(exist_ok=True)
    for name in (*names, _SUMS):
        with contextlib.suppress(FileNotFoundError):  # moved before the interruption
            os.replace(source / name, target / name)
    flush(target)


def _read_sums(folder: pathlib.Path) -> dict[str, str] | None:
    """The checksums by file name, None if there are none."""
    path = folder / _SUMS
    if not path.exists():
        return None
    lines = path.read_text(errors="replace").splitlines()
    return {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}


def _checksum(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _visible_damage(folder: pathlib.Path) -> str | None:
    """What is wrong with a backup, as far as one can see without checksums."""
    for path in (folder / _WEIGHTS, folder / _METADATA):
        if not path.exists():
            return f"{path} is missing"
    try:
        h5py.File(folder / _WEIGHTS).close()
    except OSError as error:
        return f"{folder / _WEIGHTS} cannot be read ({error})"
    try:
        epoch = json.loads((folder / _METADATA).read_text())["epoch"]
    except (ValueError, TypeError, LookupError) as error:
        return f"{folder / _METADATA} cannot be read ({type(error).__name__}: {error})"
    return None if isinstance(epoch, int) else f"{folder / _METADATA} has no number of an epoch"


def _of_keras(path: pathlib.Path) -> pathlib.Path:
    """Where Keras' `double_checkpoint` keeps the older version of the file at `path`."""
    return path.with_name(f"{path.name}.bkp")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
