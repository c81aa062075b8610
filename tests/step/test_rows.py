"""Sparse gradients travel as rows or as tables, whichever is fewer bytes."""

import pytest
import tensorflow as tf

from tfdist.step.rows import table_is_smaller


@pytest.mark.parametrize(
    ("spec", "rows", "expected"),
    [
        # A table of 100 rows is as much to sum as 200 rows to gather, but rows also have numbers.
        (tf.TensorSpec([100, 1000]), 199, False),
        (tf.TensorSpec([100, 1000]), 200, True),
        (tf.TensorSpec([100, 2]), 101, True),
        (tf.TensorSpec([100, 2]), 100, False),
        (tf.TensorSpec([10_000_000, 64]), 8192, False),
    ],
)
def test_the_smaller_of_both(spec, rows, expected):
    assert bool(table_is_smaller(spec, tf.constant(rows, tf.int64))) is expected
