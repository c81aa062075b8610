"""Tensors as vectors of int64: every engine can send these and sums them without rounding."""

from __future__ import annotations

import tensorflow as tf

# Bytes of an int64.
WORD = 8


def bytes_of(tensor: tf.Tensor) -> tf.Tensor:
    """The bytes of `tensor` as a vector of uint8."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def as_words(data: tf.Tensor) -> tf.Tensor:
    """A uint8 vector as an int64 vector, padded with zeros."""
    length = data.shape[0]
    if length is None or length % WORD:
        data = tf.pad(data, [[0, -tf.size(data) % WORD if length is None else -length % WORD]])
    words = -1 if length is None else -(-length // WORD)
    return tf.bitcast(tf.reshape(data, [words, WORD]), tf.int64)


def to_words(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of `tensor` as a vector of int64."""
    return as_words(bytes_of(tensor))


def from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Inverse of `to_words`: a tensor of the shape and dtype of `like`."""
    data = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    width, shape = like.dtype.size, tf.shape(like)
    if width > 1:
        shape = tf.concat([shape, [width]], axis=0)
    found = tf.bitcast(tf.reshape(data[: width * tf.size(like)], shape), like.dtype)
    return tf.ensure_shape(found, like.shape)
