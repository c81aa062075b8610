"""What the operations of a job have come to, in a file, for ranks that are started later.

On each machine the first rank writes. What it has written last is not certain, because it may be
lost before another rank has completed the same operation, and the others then repeat it. An entry
is certain once the next operation is completed, which needs all ranks.
"""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdist.elastic import entries


class Entry(NamedTuple):
    """What an operation has come to.

    Attributes:
        kind: what kind of operation it is.
        result: its result, without tensors.
        values: values of some variables after it, by number.
        size: the number of ranks that have completed it.
    """

    kind: str
    result: Any
    values: Mapping[int, np.ndarray]
    size: int


class Journal:
    """The file of one job.

    Args:
        path: where it is.

    Attributes:
        path: as above.
    """

    def __init__(self, path: str):
        self.path = pathlib.Path(path)
        self._count: int | None = None  # entries in the file; None if another rank writes it
        self._place = 0  # where this process reads on

    def has(self, count: int) -> bool:
        """Whether this process has written the last one of `count` entries, as far as it can."""
        return self._count == count

    def keep(self, count: int, entry: Entry | None) -> None:
        """Makes `entry` the last one of `count` entries; called in ranks that write.

        Args:
            count: how many operations all ranks have completed.
            entry: what the last of them has come to; None in a rank that has joined after it.
        """
        if self._count == count:
            return
        try:
            is_there = self._count != count - 1 and self._take_over(count, entry is not None)
            if entry is not None and not is_there:
                self._append(entry)
        except Exception as error:  # whatever an object's own code raises when it is pickled
            self.end(f"a result cannot be kept ({type(error).__name__}: {error})")
        self._count = count

    def _take_over(self, count: int, has_last: bool) -> bool:
        """Drops what the rank that has written so far did not complete together with all others.

        Args:
            count: how many operations all have completed.
            has_last: whether this process knows what the last of them has come to.

        Returns:
            Whether the last entry is there. If there is one after it, it is certain.
        """
        self.path.touch()
        with self.path.open("r+b") as file:
            ends = [0]
            while len(ends) < count + 2 and (end := entries.end_at(file.fileno(), ends[-1])):
                ends.append(end)
            kept = count if len(ends) > count + 1 or not has_last else count - 1
            if len(ends) <= kept:
                raise LookupError("a rank was lost before it had written down what the ranks did")
            file.truncate(ends[kept])
        return kept == count

    def _append(self, entry: Entry) -> None:
        data = pickle.dumps(tuple(entry))
        data = entries.LENGTH.pack(len(data)) + data
        with self.path.open("ab", buffering=0) as file:
            before, written = file.tell(), 0
            try:
                while written < len(data):
                    written += file.write(data[written:])
            except OSError:
                file.truncate(before)
                raise

    def end(self, why: str) -> None:
        """Says that nobody can follow the ranks any more; called in any of them."""
        entries.end(self.path, why)

    def why_ended(self) -> str:
        """Why nobody can follow the ranks any more; "" if one can."""
        return entries.why_ended(self.path)

    def read(self, *, is_last: bool) -> Entry | None:
        """The next entry, or None if it is not certain yet.

        Args:
            is_last: whether the entry is certain, though there is no other one after it.
        """
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            found = entries.read_at(file.fileno(), self._place)
            if found is None or not (is_last or entries.end_at(file.fileno(), found[1])):
                return None
        data, self._place = found
        return Entry(*pickle.loads(data))
