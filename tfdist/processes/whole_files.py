"""Files of models: only whole files become visible."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from tfdist.processes.backups import flush


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path names a file of a remote file system."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def whole_file(path: Any, size: int) -> Iterator[Any]:
    """Yields a temporary path to write to; the whole file then replaces the file at `path`.

    Folders, open files and remote files are written directly.

    Args:
        path: where the file is to be.
        size: about how many bytes the file will have.

    Raises:
        OSError: when the disk has no room for this many bytes.
    """
    is_path = isinstance(path, (str, os.PathLike)) and not is_remote(path)
    if not is_path or not str(path).endswith((".h5", ".hdf5", ".keras")) or os.path.isdir(path):
        yield path
        return
    given, path = path, pathlib.Path(os.path.realpath(path))  # a link stays a link
    if not path.parent.is_dir():
        yield given  # Keras raises its own error
        return
    suffix = "".join(path.suffixes[-2:])
    partial = path.with_name(f".{path.name.removesuffix(suffix)}.incomplete{suffix}")
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "The file must not be written", str(path))
    try:
        _check_room(partial, max(size, path.stat().st_size if path.exists() else 1))
        yield str(partial)
        if path.exists():
            shutil.copymode(path, partial)
        flush(partial)
        os.replace(partial, path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _check_room(path: pathlib.Path, size: int) -> None:
    """Raises OSError if the disk has no room for a file of `size` bytes.

    A full disk would end the process: HDF5 (1.14, 2.0) crashes when it closes the file.
    """
    with open(path, "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on every file system
                message = f"{os.strerror(error.errno or 0)}: {size} bytes are needed"
                raise OSError(error.errno, message, str(path)) from error
