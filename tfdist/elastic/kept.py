"""The file from which an elastic job goes on that had too few ranks; needs no TensorFlow.

It has a line that says what it is, the length of the state, the state, and the journal up to it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from tfdist.elastic.entries import LENGTH

_KIND = b"tfdist elastic backup 1\n"  # another number for another content


class NotKeptError(ValueError):
    """A file is none of this kind."""


def path_in(folder: str) -> pathlib.Path:
    """The file in a folder."""
    return pathlib.Path(folder, "elastic.backup")


def write(folder: str, state: bytes, journal: pathlib.Path) -> None:
    """Writes the file: whole, or not at all.

    Args:
        folder: where; made if it is not there.
        state: of a rank.
        journal: the path of its journal, with as many entries as the rank has completed operations.
    """
    path = path_in(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(_KIND + LENGTH.pack(len(state)) + state)
            with journal.open("rb") as entries:
                shutil.copyfileobj(entries, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error says more
            part.unlink()
        raise


def remove(folder: str) -> None:
    """Removes the file, and what a rank has left that was killed while it wrote."""
    for path in (path_in(folder), path_in(folder).with_suffix(".part")):
        path.unlink(missing_ok=True)


def read_state(folder: str) -> bytes:
    """The state.

    Raises:
        NotKeptError: when the file is none of this kind.
    """
    with _opened(folder) as (file, length):
        return file.read(length)


def copy_journal(folder: str, to: str) -> None:
    """Writes the journal to the path `to`.

    Raises:
        NotKeptError: when the file is none of this kind.
    """
    with _opened(folder) as (file, length), open(to, "wb") as journal:
        file.seek(length, os.SEEK_CUR)
        shutil.copyfileobj(file, journal)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file after its head, and the length of the state."""
    path = path_in(folder)
    with path.open("rb") as file:
        kind, length = file.read(len(_KIND)), file.read(LENGTH.size)
        if kind != _KIND or len(length) < LENGTH.size:
            raise NotKeptError(
                "The file is no state of an elastic job (--backup-dir) that this version of tfdist "
                f"has kept. Remove it, and the job begins anew. Received: {path}"
            )
        yield file, LENGTH.unpack(length)[0]
