"""The file from which an elastic job goes on that had too few ranks; needs no TensorFlow.

It has the length of the state, the state, and the journal up to it.
"""

from __future__ import annotations

import os
import pathlib
import shutil

from tfdist.elastic.entries import LENGTH


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
    with part.open("wb") as file:
        file.write(LENGTH.pack(len(state)) + state)
        with journal.open("rb") as entries:
            shutil.copyfileobj(entries, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_state(folder: str) -> bytes:
    """The state."""
    with path_in(folder).open("rb") as file:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        return file.read(length)


def copy_journal(folder: str, to: str) -> None:
    """Writes the journal to the path `to`."""
    with path_in(folder).open("rb") as file, open(to, "wb") as journal:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        file.seek(length, os.SEEK_CUR)
        shutil.copyfileobj(file, journal)
