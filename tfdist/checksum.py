"""Checksums of variables and of other data."""

from __future__ import annotations

import hashlib
import zlib

import tensorflow as tf

# For fewer bytes, a call of TensorFlow takes longer than copying the value for zlib.
_SMALL_BYTES = 1024 * 1024


def checksum(variable: tf.Variable) -> int:
    """A checksum of the bits of `variable` and their order, the same in all processes.

    Large variables are read by TensorFlow: it needs no copy on a CPU, and is some ten times as fast
    as `zlib.crc32`.

    Args:
        variable: of any shape and any dtype but strings.

    Returns:
        An integer within int64.

    Example:

    >>> import tensorflow as tf
    >>> from tfdist.checksum import checksum
    >>> checksum(tf.Variable([1.0, 2.0])) == checksum(tf.Variable([2.0, 1.0]))
    False
    """
    if variable.shape.num_elements() * variable.dtype.size < _SMALL_BYTES:
        return zlib.crc32(variable.numpy().tobytes())
    with tf.device("CPU:0"):
        bits = tf.fingerprint(tf.reshape(variable, [1, -1]))
    return int.from_bytes(bits.numpy().tobytes(), "little", signed=True)


def digest(data: bytes | memoryview) -> int:
    """An int64 that depends on all of `data`."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
