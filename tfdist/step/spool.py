"""Arrays that are kept in a temporary file, so that they take no memory."""

from __future__ import annotations

import math
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

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, number: int) -> np.ndarray:
        """One of the arrays."""
        position = sum(math.prod(s) * dtype.itemsize for s, dtype in self._arrays[:number])
        return self._read(position, *self._arrays[number])

    def __iter__(self) -> Iterator[np.ndarray]:
        """The arrays in their order; only one is in memory at a time."""
        position = 0
        for shape, dtype in self._arrays:
            array = self._read(position, shape, dtype)
            position += array.nbytes
            yield array

    def _read(self, position: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        array = np.empty(shape, dtype)
        self._file.seek(position)
        self._file.readinto(array.reshape(-1).view(np.uint8).data)
        return array
