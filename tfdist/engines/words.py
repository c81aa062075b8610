"""Tensors as vectors of int64: every engine can send these and sums them without rounding."""

from __future__ import annotations

import math

import tensorflow as tf

# Bytes of an int64.
WORD = 8


def bytes_of(tensor: tf.Tensor) -> tf.Tensor:
    """The bytes of `tensor`, whose shape is static, as a vector of uint8."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def as_words(data: tf.Tensor) -> tf.Tensor:
    """A uint8 vector of static length as an int64 vector, padded with zeros."""
    words = -(-data.shape[0] // WORD)
    padded = tf.pad(data, [[0, WORD * words - data.shape[0]]])
    return tf.bitcast(tf.reshape(padded, [words, WORD]), tf.int64)


def to_words(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of `tensor`, whose shape is static, as a vector of int64."""
    return as_words(bytes_of(tensor))


def from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Inverse of `to_words`: a tensor of the shape and dtype of `like`."""
    data = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    size = math.prod(like.shape) * like.dtype.size
    shape = [*like.shape, *([like.dtype.size] if like.dtype.size > 1 else [])]
    return tf.bitcast(tf.reshape(data[:size], shape), like.dtype)
