"""Files of variables on parameter servers: written and read some rows at a time.

Keras writes and reads a variable as one array. A table on several parameter servers may be larger
than the memory of the chief, which writes the file. So the chief holds a few rows at a time. The
file is the same: HDF5 lets a program write and read a part of an array.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import h5py
import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdist.compat.partitions import ParameterServerExtended, PartitionedVariable
from tfdist.compat.registry import KERAS, READ, REPLACED, touch
from tfdist.compat.sharded_weights import stored
from tfdist.compat.stateless import stateless_scope
from tfdist.structures import Structure

CHUNK_BYTES = 8 * 1024 * 1024
"""At most so many bytes of a variable are in the chief at a time, while a file is written or read.
Smaller variables are written and read whole."""

_LIBRARY = "keras.src.saving.saving_lib"
_STORE = f"{_LIBRARY}:H5IOStore"
_BY_ROWS: dict[str, str] = {
    "why": "Keras writes and reads a whole variable at once, but a partitioned variable may be "
    "larger than the memory of the process that does so",
    "versions": KERAS,
    "instead": "a store with which a layer writes and reads some rows of a variable",
}
_SET = touch(_STORE, "__setitem__", REPLACED, "self", "key", "value", **_BY_ROWS)
_GET = touch(_STORE, "__getitem__", REPLACED, "self", "key", **_BY_ROWS)
_GROUP = touch(_STORE, "_h5_entry_group", READ, **_BY_ROWS)
_SHARDED = touch(_LIBRARY, "ShardedH5IOStore", READ, **_BY_ROWS)
_ASSIGN = touch(
    *("keras.src.backend.common.variables:Variable", "assign", REPLACED, "self", "value"),
    **_BY_ROWS,
)
_IN_MEMORY = touch(
    *(_LIBRARY, "is_memory_sufficient", REPLACED, "model"),
    why="Keras asks here whether it may hold the file in memory that becomes part of an archive. "
    "Otherwise it makes a temporary file",
    versions=KERAS,
    instead="an argument of `save` and `load_model`",
)


class _Store(Protocol):
    """Keras' `H5IOStore`."""

    def __delitem__(self, key: str) -> None: ...


class _OnDisk(np.memmap):
    """A large array in a file that Keras reads."""


class _State(threading.local):
    reading = False


_state = _State()


@contextlib.contextmanager
def reading_rows(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """In this context, a large array of a file is given to variables without being read before.

    Args:
        strategy: of the model. Without parameter servers, the context has no effect.
    """
    before, _state.reading = _state.reading, _has_servers(strategy)
    try:
        yield
    finally:
        _state.reading = before


def is_large(variable: keras.Variable) -> bool:
    """Whether a variable is on parameter servers, and too large to be in the chief as a whole."""
    return bool(_parts(variable))


def writes_rows(store: object) -> bool:
    """Whether a store of Keras' saving takes a large variable some rows at a time."""
    return isinstance(store, _SHARDED.get().__mro__[1]) and not isinstance(store, _SHARDED.get())


def _parts(variable: Structure) -> list[tf.Variable]:
    """The parts of a large variable, one after the other; empty for other values."""
    value = stored(variable) if isinstance(variable, keras.Variable) else None
    if isinstance(value, PartitionedVariable):
        parts = value.variables
    elif isinstance(value, tf.Variable) and "/job:ps/" in value.device and value.shape.rank:
        parts = [value]
    else:
        return []
    size = math.prod(variable.shape) * value.dtype.size
    return list(parts) if size > CHUNK_BYTES else []


def _pieces(parts: list[tf.Variable]) -> Iterator[tuple[tf.Variable, int, int, int]]:
    """The pieces that fit into a chunk.

    Yields:
        The part, the first row and the end in the part, and the first row's number in the variable.
    """
    before = 0
    for part in parts:
        rows, row_bytes = part.shape[0], math.prod(part.shape[1:]) * part.dtype.size
        most = max(1, CHUNK_BYTES // row_bytes)
        for start in range(0, rows, most):
            yield part, start, min(start + most, rows), before + start
        before += rows


def _read(part: tf.Variable, start: int, end: int) -> np.ndarray:
    # Slicing a variable would first copy all of the part.
    with tf.device(part.device):
        rows = tf.range(start, end, dtype=tf.int64)
        return tf.raw_ops.ResourceGather(
            resource=part.handle, indices=rows, dtype=part.dtype
        ).numpy()


def _write(part: tf.Variable, start: int, values: np.ndarray) -> None:
    with tf.device(part.device):
        rows = tf.range(start, start + len(values), dtype=tf.int64)
        tf.raw_ops.ResourceScatterUpdate(resource=part.handle, indices=rows, updates=values)


def _set_rows(original: Callable) -> Callable:
    @functools.wraps(original)
    def __setitem__(self: _Store, key: str, value: keras.Variable | np.ndarray) -> None:
        parts = _parts(value) if writes_rows(self) else []
        if not parts:
            original(self, key, value)
            return
        # An empty array first: Keras makes the group, and its note for bfloat16.
        original(self, key, np.zeros(0, parts[0].dtype.as_numpy_dtype))
        group = _GROUP.of(self)
        notes, kind = dict(group[key].attrs), group[key].dtype
        del self[key]
        stored = group.create_dataset(key, tuple(value.shape), kind)
        stored.attrs.update(notes)
        for part, start, end, place in _pieces(parts):
            stored[place : place + end - start] = _read(part, start, end)

    return __setitem__


def _get_rows(original: Callable) -> Callable:
    @functools.wraps(original)
    def __getitem__(self: _Store, key: str) -> h5py.Dataset | np.ndarray:
        if not (_state.reading or _has_servers(tf.distribute.get_strategy())):
            return original(self, key)
        array = _on_disk(_GROUP.of(self), key)
        return original(self, key) if array is None else array

    return __getitem__


def _has_servers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy.extended, ParameterServerExtended)


def _on_disk(group: h5py.Group | dict, key: str) -> _OnDisk | None:
    """A large array without its bytes in memory; None if it is small, or not in one piece."""
    # Keras has an empty dict where the file has no group. It refuses links to other files.
    link = group.get(key, getlink=True) if isinstance(group, h5py.Group) else None
    stored = group[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(stored, h5py.Dataset):
        return None
    offset = stored.id.get_offset()
    in_file = stored.file.driver not in ("fileobj", "core") and offset is not None
    if not in_file or stored.nbytes <= CHUNK_BYTES or stored.ndim == 0:
        return None
    is_bfloat16 = stored.attrs.get("dtype") == "bfloat16"
    dtype = np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else stored.dtype
    return _OnDisk(stored.file.filename, dtype, "r", offset, stored.shape)


def _assign_rows(original: Callable) -> Callable:
    @functools.wraps(original)
    def assign(self: keras.Variable, value: Structure) -> Structure:
        from_disk = isinstance(value, _OnDisk) and isinstance(value.base, mmap.mmap)
        parts = _parts(self) if from_disk and stateless_scope() is None else []
        if not parts or tuple(value.shape) != tuple(self.shape):
            return original(self, value)
        row = math.prod(value.shape[1:])
        for part, start, end, place in _pieces(parts):
            # Not by `value` itself, whose bytes would stay in memory once they were read.
            begin = value.offset + place * row * value.dtype.itemsize
            rows = np.fromfile(value.filename, value.dtype, (end - start) * row, offset=begin)
            rows = rows.reshape(end - start, *value.shape[1:])
            _write(part, start, rows.astype(part.dtype.as_numpy_dtype, copy=False))
        return value

    return assign


def _fits_in_memory(original: Callable) -> Callable:
    @functools.wraps(original)
    def is_memory_sufficient(model: keras.Model) -> bool:
        return not any(map(is_large, model.variables)) and original(model)

    return is_memory_sufficient


def install() -> None:
    """Lets large variables on parameter servers be saved and loaded some rows at a time."""
    _SET.replace(_set_rows)
    _GET.replace(_get_rows)
    _ASSIGN.replace(_assign_rows)
    _IN_MEMORY.replace(_fits_in_memory)
