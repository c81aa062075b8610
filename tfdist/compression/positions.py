"""Positions of a few elements of a vector, in few bytes.

The vector is divided into blocks. Ascending positions travel as their offsets in the blocks, one or
two bytes each, with the number of positions in each block. Where it is shorter, one bit for each
element of the vector travels instead.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.compression import bits


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Offsets of type `dtype` in blocks of `size`; a count fits into `dtype` too."""

    dtype: tf.DType

    @property
    def size(self) -> int:
        """One less than the type has values, so that the type can also count a full block."""
        return self.dtype.max

    def nbytes(self, count: int, length: int) -> int:
        return self.dtype.size * (count + self._number(length))

    def encode(self, positions: tf.Tensor, count: int, length: int) -> tf.Tensor:
        found = tf.shape(positions)[0]
        blocks, offsets = positions // self.size, positions % self.size
        counts = tf.math.unsorted_segment_sum(
            tf.ones_like(blocks), blocks, num_segments=self._number(length)
        )
        padded = tf.pad(offsets, [[0, count - found]])
        return tf.cast(tf.ensure_shape(tf.concat([counts, padded], 0), [None]), self.dtype)

    def decode(self, encoded: tf.Tensor, count: int, length: int) -> tf.Tensor:
        numbers = tf.cast(encoded, tf.int32)
        ends = tf.cumsum(numbers[: self._number(length)])
        blocks = tf.searchsorted(ends, tf.range(count), side="right")
        return blocks * self.size + numbers[self._number(length) :]

    def _number(self, length: int) -> int:
        return -(-length // self.size)


@dataclasses.dataclass(frozen=True)
class _Mask:
    """One bit per element."""

    dtype: tf.DType = tf.uint8

    def nbytes(self, count: int, length: int) -> int:
        return bits.packed_size(length, 2)

    def encode(self, positions: tf.Tensor, count: int, length: int) -> tf.Tensor:
        chosen = tf.scatter_nd(positions[:, None], tf.ones_like(positions, tf.float32), [length])
        return bits.pack(chosen, 2)

    def decode(self, encoded: tf.Tensor, count: int, length: int) -> tf.Tensor:
        found = tf.where(bits.unpack(encoded, (0.0, 1.0), length) > 0.0)[:, 0]
        missing = count - tf.shape(found)[0]
        return tf.pad(tf.cast(found, tf.int32), [[0, missing]], constant_values=length)


_CODES: tuple[_Blocks | _Mask, ...] = (_Blocks(tf.uint8), _Blocks(tf.uint16), _Mask())


def _code(count: int, length: int) -> _Blocks | _Mask:
    return min(_CODES, key=lambda code: code.nbytes(count, length))


def nbytes(count: int, length: int) -> int:
    """The bytes that up to `count` positions in a vector of `length` elements take."""
    return _code(count, length).nbytes(count, length)


def encode(positions: tf.Tensor, count: int, length: int) -> tf.Tensor:
    """Positions as they travel.

    Args:
        positions: int32, ascending, none twice; at most `count` positions.
        count: the largest possible number of positions; the receiver knows this number.
        length: the number of elements of the vector.

    Returns:
        uint8 or uint16 of a static shape.
    """
    code = _code(count, length)
    encoded = code.encode(positions, count, length)
    return tf.ensure_shape(encoded, [code.nbytes(count, length) // code.dtype.size])


def decode(encoded: tf.Tensor, count: int, length: int) -> tf.Tensor:
    """Inverse of `encode`; `length` stands for a missing position.

    Args:
        encoded: as from `encode`.
        count: as for `encode`.
        length: as for `encode`.

    Returns:
        int32 of shape `[count]`.
    """
    found = _code(count, length).decode(encoded, count, length)
    return tf.minimum(tf.ensure_shape(found, [count]), length)
