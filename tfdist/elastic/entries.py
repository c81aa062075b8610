"""The file of a journal: entries, each after its length; needs no numpy and no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct

LENGTH = struct.Struct("<Q")


def read_at(descriptor: int, place: int) -> tuple[bytes, int] | None:
    """A whole entry, and where the next one begins; None if there is none."""
    end = end_at(descriptor, place)
    if end is None:
        return None
    data = os.pread(descriptor, end - place - LENGTH.size, place + LENGTH.size)
    return data, end


def end_at(descriptor: int, place: int) -> int | None:
    """Where the entry ends that begins at `place`; None if it is not there or not whole."""
    head = os.pread(descriptor, LENGTH.size, place)
    if len(head) < LENGTH.size:
        return None
    end = place + LENGTH.size + LENGTH.unpack(head)[0]
    return end if end <= os.fstat(descriptor).st_size else None


def end_of(path: pathlib.Path) -> pathlib.Path:
    """The file that says why nobody can follow a journal any more."""
    return path.with_suffix(".end")


def end(path: pathlib.Path, why: str) -> None:
    """Says that nobody can follow the journal at `path` any more; the first time counts."""
    with contextlib.suppress(OSError):  # a full disk must not end training
        if not end_of(path).exists():
            end_of(path).touch()
            end_of(path).write_text(why)


def why_ended(path: pathlib.Path) -> str:
    """Why nobody can follow the journal at `path` any more; "" if one can."""
    end = end_of(path)
    return (end.read_text() or "the disk is full") if end.exists() else ""
