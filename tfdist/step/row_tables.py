"""Tables in place of the rows of sparse gradients: of whom, from rows, and back to rows.

On one device a row that is looked up twice is twice in the gradient. What Keras' optimizers make of
the rows of one number depends on two sums only: of the rows g, and of g² (Adam and most others) or
|g| (Adamax). For where rows meet something dense, Keras adds them up; what else is done to a row is
to square it, to take its magnitude, or to multiply it by what is the same for all rows of its
number. A norm for clipping is the root of the sum of all g². So other rows with the same two sums
make the same update. `clipvalue` cuts each row by itself, of which the sums do not tell.

Such rows are m + s and m - s, equally often, k of them in all. Their sum is k m, that of their
squares k (m² + s²), that of their magnitudes k s if s >= |m|. With m = Σg/k, there is an s for each
k >= (Σg)²/Σg², which is at most the number of rows, by Cauchy and Schwarz; and for magnitudes for
each k, as |Σg| <= Σ|g|. The fewer rows there are, the less is rounded where they are added up. All
is computed element by element, so nothing is lost of small elements beside large ones: Adam divides
by their size.
"""

from __future__ import annotations

import math

import keras
import tensorflow as tf

from tfdist.step.tables import Tables

_NAMES = {
    Tables.SUMS: ("SGD", "Lion"),
    Tables.SQUARES: (
        *("Adadelta", "Adagrad", "Adam", "AdamW", "Ftrl", "Lamb", "Muon", "Nadam", "RMSprop"),
        "ScheduleFreeAdamW",
    ),
    Tables.MAGNITUDES: ("Adamax",),
}
# Without subclasses, as these may look at rows in other ways. Nor Adafactor: for a column without
# gradients it divides by zero, and there Keras mixes up rows that come more than once. Older Keras
# versions do not have all of these.
_KINDS = {
    getattr(keras.optimizers, name): tables
    for tables, names in _NAMES.items()
    for name in names
    if hasattr(keras.optimizers, name)
}


def tables_of(optimizer: keras.optimizers.Optimizer) -> Tables:
    """What may travel in place of the rows of sparse gradients, for the same update.

    Args:
        optimizer: Keras' optimizer, or one with a loss scale around it.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    tables = _KINDS.get(type(inner), Tables.NONE)
    if tables is Tables.NONE or inner.clipvalue:
        return Tables.NONE
    if inner.clipnorm and tables is Tables.MAGNITUDES:
        return Tables.NONE  # the norm needs squares as well
    # After `global_clipnorm` gradients are dense, so nothing but the norm needs more than sums.
    return Tables.SQUARES if inner.clipnorm or inner.global_clipnorm else tables


def table_of(
    values: tf.Tensor, indices: tf.Tensor, spec: tf.TensorSpec, tables: Tables
) -> tf.Tensor:
    """The table of these rows; tables of several replicas may be added up.

    Args:
        values: the rows.
        indices: their numbers.
        spec: the shape and dtype of the variable.
        tables: what the table is to hold; not `NONE`.

    Returns:
        The rows of the table, each of them flat.
    """
    rows = tf.reshape(values, [-1, math.prod(spec.shape[1:])])
    if tables is not Tables.SUMS:
        rows = tf.cast(rows, tf.float64 if rows.dtype == tf.float64 else tf.float32)
        others = tf.square(rows) if tables is Tables.SQUARES else tf.abs(rows)
        rows = tf.concat([rows, others, tf.ones_like(rows[:, :1])], axis=1)
    return tf.math.unsorted_segment_sum(rows, indices, spec.shape[0])


def rows_of(
    table: tf.Tensor, like: tf.IndexedSlices, spec: tf.TensorSpec, tables: Tables
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows with the sums of a table, and their numbers.

    Without squares and magnitudes there is one row of each number. Else there are as few as can be,
    but none of a number that has none in the table.

    Args:
        table: the sum of tables from `table_of`.
        like: has the dtypes that are wanted.
        spec: as for `table_of`.
        tables: as for `table_of`.
    """
    if tables is Tables.SUMS:
        numbers = tf.range(spec.shape[0], dtype=like.indices.dtype)
        return tf.reshape(table, spec.shape), numbers
    width = math.prod(spec.shape[1:])
    sums, others, counts = tf.split(table, [width, width, 1], axis=1)
    pairs = tf.math.ceil(counts / 2)
    least = tf.zeros_like(pairs)
    if tables is Tables.SQUARES:
        ratios = tf.math.divide_no_nan(tf.square(sums), others)
        least = tf.math.ceil(tf.reduce_max(ratios, axis=1, keepdims=True) / 2)
    # If a sum is not a number, nor is what is least, which then is not less.
    pairs = tf.where(least < pairs, tf.maximum(least, 1), pairs)
    divisors = tf.maximum(2 * pairs, 1)
    means, spreads = sums / divisors, others / divisors
    if tables is Tables.SQUARES:
        spreads = tf.sqrt(tf.maximum(spreads - tf.square(means), 0))
    ends = tf.cumsum(tf.cast(2 * pairs[:, 0], tf.int64))
    places = tf.range(ends[-1])
    # `tf.repeat` would take memory for the most frequent number as often as there are numbers.
    numbers = tf.searchsorted(ends, places, side="right")
    signs = tf.cast(1 - 2 * (places % 2), table.dtype)[:, tf.newaxis]
    values = tf.gather(means, numbers) + signs * tf.gather(spreads, numbers)
    shaped = tf.reshape(values, [-1, *spec.shape[1:]])
    return tf.cast(shaped, like.dtype), tf.cast(numbers, like.indices.dtype)
