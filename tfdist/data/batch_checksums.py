"""Checksums of batches, by a sample of their numbers."""

from __future__ import annotations

import itertools
import math

import tensorflow as tf

from tfdist.structures import Structure

# Numbers per sample that enter a checksum: enough to notice another order or other data.
_SAMPLED_OF_INPUTS, _SAMPLED_OF_TARGETS = 8, 64
_UNKNOWN_ROW = 1000


def of_inputs(data: Structure) -> tf.Tensor:
    """A checksum of a sample of `data`, an int64."""
    return _checksum(data, _SAMPLED_OF_INPUTS)


def of_targets(data: Structure) -> tf.Tensor:
    """A checksum of a larger sample of `data`, an int64."""
    return _checksum(data, _SAMPLED_OF_TARGETS)


def _checksum(data: Structure, of_each: int) -> tf.Tensor:
    """An int64 that depends on about `of_each` numbers of each sample of the tensors in `data`."""
    leaves = tf.nest.flatten(data, expand_composites=True)
    parts = [tf.io.serialize_tensor(_some(x, of_each)) for x in leaves if tf.is_tensor(x)]
    if not parts:
        return tf.zeros([], tf.int64)
    text = parts[0] if len(parts) == 1 else tf.strings.join(parts)
    return tf.strings.to_hash_bucket_fast(text, 2**62)


def _some(tensor: tf.Tensor, of_each: int) -> tf.Tensor:
    """About `of_each` numbers of each row of `tensor`, at places that differ from row to row."""
    if not tensor.shape.rank or tensor.shape.rank == 1:
        return tensor
    in_row = tensor.shape[1:].num_elements() or _UNKNOWN_ROW
    if in_row <= of_each:
        return tensor
    stride = next(n for n in itertools.count(in_row // of_each) if math.gcd(n, in_row) == 1)
    return tf.reshape(tensor, [-1])[::stride]
