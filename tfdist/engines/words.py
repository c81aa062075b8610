"""Tensors as vectors of int64: every engine can send these and sums them without rounding."""

from __future__ import annotations

import math

import tensorflow as tf

# Bytes of an int64.
WORD = 8


def bytes_of(tensor: tf.Tensor) -> tf.Tensor:
    """The bytes of `tensor` as a vector of uint8."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def as_words(data: tf.Tensor) -> tf.Tensor:
    """A uint8 vector as an int64 vector, padded with zeros."""
    length = data.shape[0]
    if length is None:
        data = tf.pad(data, [[0, -tf.size(data, tf.int64) % WORD]])
    elif length % WORD:
        data = tf.pad(data, [[0, -length % WORD]])
    words = -1 if length is None else -(-length // WORD)
    return tf.bitcast(tf.reshape(data, [words, WORD]), tf.int64)


def to_words(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of `tensor` as a vector of int64."""
    return as_words(bytes_of(tensor))


def from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Inverse of `to_words`: a tensor of the shape and dtype of `like`."""
    data = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    width = like.dtype.size
    if like.shape.is_fully_defined():
        shape = tf.constant(like.shape.as_list(), tf.int64)
        data = data[: width * math.prod(like.shape)]
    else:  # counted in int64, as 2 GiB are more bytes than an int32 can count
        shape = tf.shape(like, tf.int64)
        data = data[: width * tf.size(like, tf.int64)]
    if width > 1:
        shape = tf.concat([shape, tf.constant([width], tf.int64)], axis=0)
    return tf.ensure_shape(tf.bitcast(tf.reshape(data, shape), like.dtype), like.shape)
