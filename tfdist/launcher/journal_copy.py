"""The journal of an elastic job on one machine, which may be a copy of that of another machine.

On each machine with ranks that train, one of them writes the journal (`tfdist.elastic.journal`). On
a machine that has only new ranks, the launcher writes what it gets from another machine. It asks
again and again; both sides count entries, so it does not matter which machine answers.
"""

from __future__ import annotations

import base64
import os
import pathlib
from collections.abc import Callable

from tfdist.elastic import entries
from tfdist.rendezvous.channel import Message

_PIECE_BYTES = 256 * 1024
_PAUSE = 0.05  # seconds, when there was nothing new
_PATIENCE = 5.0  # seconds for an answer; then another machine may answer


class JournalCopy:
    """The journal on this machine.

    Args:
        path: where it is.
        ask: asks for what follows after so many entries and bytes of the next one.
    """

    def __init__(self, path: str, ask: Callable[[int, int], None]):
        self._path = pathlib.Path(path)
        self._path.touch()
        self._ask = ask
        self._ends = [0]  # where certain entries end
        self._next = 0.0  # when to ask
        self._is_copy = False
        self._source: int | None = None
        self._whole = [0]  # where copied entries end
        self._extra = 0  # bytes of one that is not whole

    # --- for other machines ---------------------------------------------------------------------

    def piece(self, after: int, offset: int, certain: int, most: int | None) -> Message:
        """What follows after so many entries and bytes.

        Args:
            after: the number of entries.
            offset: the number of bytes of the next entry.
            certain: so many entries are certain. Others are certain if there is one after them.
            most: no entry after so many; None for no limit.
        """
        try:
            data, why = self._read(after, offset, certain, most), ""
        except OSError as error:
            data, why = b"", f"a result cannot be read ({error})"
        why = "" if data else why or entries.why_ended(self._path)
        text = base64.b64encode(data).decode()
        return {"after": after, "offset": offset, "data": text, "why": why}

    def _read(self, after: int, offset: int, certain: int, most: int | None) -> bytes:
        with self._path.open("rb") as file:
            there = self._found(file.fileno())
            count = max(len(there) - 2, min(certain, len(there) - 1))
            count = count if most is None else min(count, most)
            if after >= count:
                return b""
            start = there[after] + offset
            return os.pread(file.fileno(), min(there[count] - start, _PIECE_BYTES), start)

    def _found(self, descriptor: int) -> list[int]:
        """Where all whole entries end. The last one may be replaced later, those before it not."""
        ends = list(self._ends)
        while (end := entries.end_at(descriptor, ends[-1])) is not None:
            ends.append(end)
        self._ends = ends[:-1] or ends
        return ends

    # --- from other machines --------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Asks for more, if it is time; called while new ranks of this machine follow."""
        if now >= self._next and not entries.end_of(self._path).exists():
            self._next = now + _PATIENCE
            self._ask(len(self._whole) - 1, self._extra)

    @property
    def pause(self) -> float:
        """How many seconds there may be between two looks."""
        return _PAUSE

    def is_written(self, now: float) -> None:
        """Called with the answer that a rank of this machine writes the journal itself."""
        self._is_copy = False
        self._next = now + _PAUSE

    def take(self, source: int, piece: Message, now: float) -> None:
        """Called with the answer of another machine.

        Args:
            source: the number of the machine.
            piece: what its `piece` has returned.
            now: the time.
        """
        try:
            self._take(source, piece, now)
        except OSError as error:
            entries.end(self._path, f"a result cannot be kept ({error})")
        self._source = source

    def _take(self, source: int, piece: Message, now: float) -> None:
        size = self._path.stat().st_size
        self._is_copy &= size == self._whole[-1] + self._extra  # or else a rank has written
        if not self._is_copy or (source != self._source and self._extra):
            self._begin()
            self._next = now
        elif (piece["after"], piece["offset"]) == (len(self._whole) - 1, self._extra):
            self._append(base64.b64decode(piece["data"]))
            self._next = now if piece["data"] else now + _PAUSE
            if piece["why"]:
                entries.end(self._path, piece["why"])

    def _begin(self) -> None:
        """Drops an entry that is not whole; and the last one, if a rank of this machine wrote it.

        That one may have been lost with the rank before others had completed the same operation.
        """
        with self._path.open("r+b") as file:
            found = self._found(file.fileno())
            self._whole = found if self._is_copy else found[:-1] or found
            file.truncate(self._whole[-1])
        self._is_copy, self._extra = True, 0

    def _append(self, data: bytes) -> None:
        with self._path.open("r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            file.write(data)
            while (end := entries.end_at(file.fileno(), self._whole[-1])) is not None:
                self._whole.append(end)
            self._extra = file.tell() - self._whole[-1]
