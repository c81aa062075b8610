"""Finds the elements of largest magnitude without sorting all of them."""

from __future__ import annotations

import tensorflow as tf

# Shorter vectors are searched whole.
_EXACT = 32768
# How many elements of the sample should reach the threshold: the count then errs by about 5 %.
_WANTED = 400
# For so few elements the sample would be a large part of the vector. Searching all is as fast.
_FEW = 8 * _WANTED


def positions_of_largest(
    x: tf.Tensor, count: int, seed: tf.Tensor, least: float = 0.0
) -> tf.Tensor:
    """Positions of about the `count` elements of largest magnitude that are not zero.

    A sample gives a threshold that somewhat more than `count` elements should reach. Among these
    elements the largest are found exactly. See Lin et al., "Deep Gradient Compression" (ICLR 2018),
    section 3, "hierarchical threshold selection". When the sample misleads, fewer elements are
    found.

    Args:
        x: float32 of shape `[length]`.
        count: how many elements, at least 1.
        seed: int32 of shape `[2]`, for the sample.
        least: smaller magnitudes are left out.

    Returns:
        int32, ascending: `count` positions. They may be fewer, by chance or because there are fewer
        such elements.
    """
    magnitudes = tf.where(tf.equal(x, x), tf.abs(x), float("inf"))
    length = x.shape[0]
    if _EXACT < length and count < length:
        least = tf.maximum(_threshold(magnitudes, count, seed), least)
    candidates = _positions((magnitudes >= least) & (magnitudes > 0.0))
    return tf.cond(
        tf.shape(candidates)[0] > count,
        lambda: _largest_of(tf.gather(magnitudes, candidates), candidates, count),
        lambda: candidates,
    )


def _threshold(magnitudes: tf.Tensor, count: int, seed: tf.Tensor) -> tf.Tensor:
    """A threshold that `count` of the magnitudes reach, or somewhat more."""
    if count <= _FEW:
        return tf.math.top_k(magnitudes, count).values[-1]
    length = magnitudes.shape[0]
    size = max(_EXACT, _WANTED * length // count)
    places = tf.random.stateless_uniform([size], seed, 0, length, tf.int32)
    reach = int(1.25 * count * size / length) + 1
    return tf.math.top_k(tf.gather(magnitudes, places), reach).values[-1]


def _largest_of(magnitudes: tf.Tensor, positions: tf.Tensor, count: int) -> tf.Tensor:
    """The `positions` of the `count` largest magnitudes, in the order of `positions`."""
    chosen = tf.math.top_k(magnitudes, count, sorted=False).indices
    return tf.gather(positions, tf.sort(chosen))


def _positions(condition: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(condition)[:, 0], tf.int32)
