"""Arrays that are kept in a temporary file, so that they take no memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np


class Spool:
    """A list of arrays in a temporary file; the file disappears with the list."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="tfdist-")
        self._arrays: list[tuple[tuple[int, ...], np.dtype]] = []

    def append(self, array: np.ndarray) -> None:
        """Appends `array`; append all arrays before reading the first."""
        self._arrays.append((array.shape, array.dtype))
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def __iter__(self) -> Iterator[np.ndarray]:
        """The arrays in their order; only one is in memory at a time."""
        position = 0
        for shape, dtype in self._arrays:
            array = np.empty(shape, dtype)
            self._file.seek(position)
            self._file.readinto(array.reshape(-1).view(np.uint8).data)
            position += array.nbytes
            yield array
