"""Small numbers, several to a byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def digits_per_byte(base: int) -> int:
    """How many digits of a number system fit into a byte.

    Example:

    >>> from tfdist.compression.bits import digits_per_byte
    >>> [digits_per_byte(base) for base in (2, 3, 9, 256)]
    [8, 5, 2, 1]
    """
    digits = 1
    while base ** (digits + 1) <= 256:
        digits += 1
    return digits


def packed_size(count: int, base: int) -> int:
    """How many bytes `count` digits have."""
    return -(-count // digits_per_byte(base))


def pack(digits: tf.Tensor, base: int) -> tf.Tensor:
    """Digits as bytes; the first digit of a byte is in the lowest place.

    Args:
        digits: float32 of shape `[count]`, whole numbers from 0 to `base` − 1.
        base: 2 to 256.

    Returns:
        uint8 of shape `[packed_size(count, base)]`.
    """
    per = digits_per_byte(base)
    missing = -digits.shape[0] % per
    rows = tf.reshape(tf.pad(digits, [[0, missing]]) if missing else digits, [-1, per])
    places = tf.constant([[float(base**place)] for place in range(per)])
    return tf.cast(tf.reshape(tf.linalg.matmul(rows, places), [-1]), tf.uint8)


def unpack(packed: tf.Tensor, values: Sequence[float], count: int) -> tf.Tensor:
    """What digits stand for.

    Args:
        packed: as from `pack` with the base `len(values)`.
        values: what each digit stands for.
        count: the number of digits.

    Returns:
        float32 of shape `[count]`.
    """
    base = len(values)
    per = digits_per_byte(base)
    numbers = np.arange(base**per)[:, None] // base ** np.arange(per) % base
    table = tf.constant(np.asarray(values, np.float32)[numbers])
    rows = tf.gather(table, tf.cast(packed, tf.int32))
    return tf.reshape(rows, [-1])[:count]
