"""Sparse gradients travel as rows or as tables, whichever is fewer bytes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import compression
from tfdist.compression import FP16
from tfdist.step.rounded_rows import coder_of, table_is_smaller
from tfdist.step.rows import are_summed
from tfdist.step.tables import Tables


@pytest.mark.parametrize(
    ("spec", "coder", "index_bytes", "rows", "expected"),
    [
        # A table of 100 rows is as much to sum as 200 rows to gather, but rows also have numbers.
        (tf.TensorSpec([100, 1000]), None, 8, 199, False),
        (tf.TensorSpec([100, 1000]), None, 8, 200, True),
        (tf.TensorSpec([100, 2]), None, 8, 101, True),
        (tf.TensorSpec([100, 2]), None, 8, 100, False),
        (tf.TensorSpec([100, 1], tf.float64), None, 4, 133, False),
        (tf.TensorSpec([100, 1], tf.float64), None, 4, 134, True),
        (tf.TensorSpec([10_000_000, 64]), None, 8, 8192, False),
        # A rounded row is half as many bytes, and the table stays whole.
        (tf.TensorSpec([100, 2]), FP16(), 4, 200, False),
        (tf.TensorSpec([100, 2]), FP16(), 4, 201, True),
    ],
)
def test_the_smaller_of_both(spec, coder, index_bytes, rows, expected):
    rows = tf.constant(rows, tf.int64)
    found = table_is_smaller(spec, rows, Tables.SUMS, coder, index_bytes)
    assert bool(found) is expected


@pytest.mark.parametrize("tables", [Tables.SQUARES, Tables.MAGNITUDES])
@pytest.mark.parametrize(
    ("spec", "least"),
    [
        # Two numbers for each number of the table, and one for each row, are 5 instead of 2.
        (tf.TensorSpec([100, 2]), 251),
        # They are 4 bytes each also where the table has half precision.
        (tf.TensorSpec([100, 2], tf.float16), 334),
        (tf.TensorSpec([100, 2], tf.float64), 334),
    ],
)
def test_tables_of_several_sums_are_larger(spec, least, tables):
    found = [table_is_smaller(spec, rows, tables, index_bytes=8) for rows in (least - 1, least)]
    assert found == [False, True]


def test_error_feedback_leaves_rows_whole():
    assert coder_of(FP16()) == FP16()
    assert coder_of(FP16(error_feedback=True)) is None
    assert coder_of(None) is None and coder_of(compression.get("int8")) is None


_OPTIMIZERS = [
    (lambda: keras.optimizers.SGD(0.1), True),
    (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1), True),
    (lambda: keras.optimizers.SGD(0.1, clipnorm=0.1), False),
    (lambda: keras.optimizers.SGD(0.1, clipvalue=0.1), False),
    (lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1), False),
    (lambda: keras.optimizers.Adam(0.1), False),
    (lambda: keras.optimizers.Lion(0.1, weight_decay=0.1), True),
]


@pytest.mark.parametrize(("make", "expected"), _OPTIMIZERS)
def test_which_optimizers_sum_rows_of_one_number(make, expected):
    """What is said of an optimizer is what it does."""
    number = tf.constant([1, 1])
    twice = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, -1.0]]), number, tf.constant([3, 2]))
    found = []
    for gradient in (twice, tf.convert_to_tensor(twice)):
        optimizer, variable = make(), keras.Variable(np.ones((3, 2), "float32"))
        for _ in range(2):
            optimizer.apply([gradient], [variable])
        found.append(variable.numpy())
    assert are_summed(make()) is expected
    assert np.allclose(*found, atol=1e-6) is expected
    assert are_summed(keras.optimizers.LossScaleOptimizer(make())) is expected
