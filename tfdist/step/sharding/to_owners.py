"""The two exchanges for whole variables that belong to one replica each: sums, and new values.

Each replica's variables lie one behind the other in a row of a table, the last ones first. The
table travels in columns: a reduce-scatter gives each replica its row of the sums, and an all-gather
gives all of them all rows. Rows that are shorter than the longest one are filled up with zeros.
Where that would be more than half of a column, as the replicas own much more and much less, the
column is summed on all replicas instead, and each row comes from its owner by a broadcast.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdist.engines.current import current
from tfdist.engines.replica_context import static_id
from tfdist.step.exchange import all_reduce, enough
from tfdist.step.sharding.owners import Owned
from tfdist.step.spans import timed


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some elements of a variable, from `begin` to `end`; `place` is that of the variable."""

    place: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Column:
    """What one operation carries.

    Attributes:
        dtype: of the elements.
        rows: the pieces in it, by owner.
        width: the length of the longest row.
    """

    dtype: tf.DType
    rows: tuple[tuple[Piece, ...], ...]
    width: int

    @property
    def lengths(self) -> list[int]:
        """The number of elements of each row."""
        return [sum(piece.end - piece.begin for piece in row) for row in self.rows]

    @property
    def is_filled_up(self) -> bool:
        """Whether short rows are filled up, as at least half of the column are elements."""
        return len(self.rows) * self.width <= 2 * sum(self.lengths)


def columns_of(
    owned: Mapping[int, Owned], replicas: int, bucket_bytes: int, largest: int | None
) -> list[Column]:
    """What travels together.

    Args:
        owned: the variables, by their places.
        replicas: the number of replicas.
        bucket_bytes: upper bound of a column.
        largest: the engine's largest message in bytes; None for no bound.
    """
    total = sum(one.size * one.dtype.size for one in owned.values())
    most = min(enough(total, bucket_bytes), largest or bucket_bytes)
    columns = []
    for dtype in dict.fromkeys(one.dtype for one in owned.values()):
        rows: list[list[int]] = [[] for _ in range(replicas)]
        for place in sorted(owned, reverse=True):
            if owned[place].dtype == dtype:
                rows[owned[place].owner].append(place)
        length = max(sum(owned[place].size for place in row) for row in rows)
        count = max(1, math.ceil(replicas * length * dtype.size / most)) if length else 0
        ends = [length * number // count for number in range(count + 1)]
        for begin, end in zip(ends, ends[1:]):
            pieces = tuple(tuple(_pieces(row, owned, begin, end)) for row in rows)
            columns.append(Column(dtype, pieces, end - begin))
    return columns


def _pieces(row: Sequence[int], owned: Mapping[int, Owned], begin: int, end: int) -> list[Piece]:
    """What lies from `begin` to `end` in a row of variables."""
    found, offset = [], 0
    for place in row:
        size = owned[place].size
        first, last = max(0, begin - offset), min(size, end - offset)
        if first < last:
            found.append(Piece(place, first, last))
        offset += size
    return found


def sums_of_own(
    tensors: Mapping[int, tf.Tensor], owned: Mapping[int, Owned], bucket_bytes: int
) -> dict[int, tf.Tensor]:
    """The sums over the replicas of the tensors that this replica owns; in replica context.

    Args:
        tensors: of the same shapes on every replica, by their places.
        owned: who owns each of them.
        bucket_bytes: upper bound of what one operation carries.
    """
    engine, own = current(), static_id()
    given = _flat(tensors, owned)

    def row_of_sums(column: Column, flat: tf.Tensor) -> tf.Tensor:
        if column.is_filled_up:
            return engine.reduce_scatter(flat)
        begin = sum(column.lengths[:own])
        return all_reduce([flat])[0][begin : begin + column.lengths[own]]

    found: dict[int, list[tf.Tensor]] = {}
    for number, column in enumerate(
        columns_of(owned, engine.replicas, bucket_bytes, engine.largest_message)
    ):
        width = column.width if column.is_filled_up else None
        flat = tf.concat([_row(given, row, column, width) for row in column.rows], axis=0)
        row = timed(f"reduce-scatter {number}", flat, functools.partial(row_of_sums, column, flat))
        _add_pieces(found, column.rows[own], row)
    return {
        place: _of_pieces(found.get(place, []), one)
        for place, one in owned.items()
        if one.owner == own
    }


def from_owners(
    values: Mapping[int, tf.Tensor], owned: Mapping[int, Owned], bucket_bytes: int
) -> dict[int, tf.Tensor]:
    """The tensors of all owners, by their places; in replica context.

    Args:
        values: those that this replica owns, by their places.
        owned: who owns each of all tensors.
        bucket_bytes: upper bound of what one operation carries.
    """
    engine, own = current(), static_id()
    given = _flat(values, owned)

    def all_rows(column: Column, row: tf.Tensor) -> list[tf.Tensor]:
        if column.is_filled_up:
            return tf.split(engine.all_gather_parts(row), engine.replicas)
        rows = []
        for owner, length in enumerate(column.lengths):
            mine = row if owner == own else tf.zeros([length], column.dtype)
            rows.append(engine.broadcast(mine, owner) if length else mine)
        return rows

    found: dict[int, list[tf.Tensor]] = {}
    for number, column in enumerate(
        columns_of(owned, engine.replicas, bucket_bytes, engine.largest_message)
    ):
        width = column.width if column.is_filled_up else None
        row = _row(given, column.rows[own], column, width)
        rows = timed(f"all-gather {number}", row, functools.partial(all_rows, column, row))
        for pieces, one in zip(column.rows, rows):
            _add_pieces(found, pieces, one)
    return {place: _of_pieces(found.get(place, []), one) for place, one in owned.items()}


def _flat(tensors: Mapping[int, tf.Tensor], owned: Mapping[int, Owned]) -> dict[int, tf.Tensor]:
    return {place: tf.reshape(value, [owned[place].size]) for place, value in tensors.items()}


def _row(
    flat: Mapping[int, tf.Tensor], pieces: Sequence[Piece], column: Column, width: int | None
) -> tf.Tensor:
    """Pieces of vectors one behind the other, filled up to `width` elements if there is one."""
    parts = [flat[piece.place][piece.begin : piece.end] for piece in pieces]
    missing = 0 if width is None else width - sum(piece.end - piece.begin for piece in pieces)
    if missing or not parts:
        parts.append(tf.zeros([missing], column.dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def _add_pieces(found: dict[int, list[tf.Tensor]], pieces: Sequence[Piece], row: tf.Tensor) -> None:
    begin = 0
    for piece in pieces:
        end = begin + piece.end - piece.begin
        found.setdefault(piece.place, []).append(row[begin:end])
        begin = end


def _of_pieces(pieces: Sequence[tf.Tensor], one: Owned) -> tf.Tensor:
    if not pieces:  # a variable without elements
        return tf.zeros(one.shape, one.dtype)
    flat = pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=0)
    return tf.reshape(flat, one.shape)
