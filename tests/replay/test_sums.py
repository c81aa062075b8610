"""By what batches and weights are told apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.replay.sums import checksum_of_batch, difference, weights_of


def test_the_checksum_of_a_batch_is_that_of_its_contents():
    x = np.arange(6, dtype="float32").reshape(2, 3)
    batches = [
        (tf.constant(x), tf.constant([b"a", b"b"])),
        (tf.constant(x + [[0, 0, 0], [0, 0, 1e-6]]), tf.constant([b"a", b"b"])),
        (tf.constant(x.reshape(3, 2)), tf.constant([b"a", b"b"])),
        (tf.constant(x), tf.constant([b"a", b"c"])),
        (tf.constant(x), None),
        tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 2]),
        tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 1]),
    ]
    sums = [checksum_of_batch(batch) for batch in batches]
    assert len(set(sums)) == len(sums)
    assert sums[0] == checksum_of_batch([tf.identity(tensor) for tensor in batches[0]])


def test_a_checksum_is_the_same_on_all_machines():
    assert checksum_of_batch((tf.range(3), tf.constant("a"))) == "7edb1641"


def summary(*values, dtype="float32"):
    return weights_of([keras.Variable(np.asarray(value), dtype=dtype) for value in values])


def test_every_bit_of_the_weights_counts():
    value = np.arange(100.0).reshape(10, 10)
    other = value.copy()
    other[4, 5] = np.nextafter(np.float32(45), np.float32(46))
    assert summary(value) == summary(value)
    assert summary(value).checksum != summary(other).checksum


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0.5, 0.25], [0.5, 0.25], 0.0),
        ([0.5, 0.25], [0.5, 0.5], 0.25),
        ([1000.0], [1001.0], 1 / 1001),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_difference(one, other, expected):
    assert difference(summary(one), summary(other)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "bool"])
def test_all_kinds_of_numbers(dtype):
    one, other = summary([[0, 1]], dtype=dtype), summary([[1, 1]], dtype=dtype)
    assert difference(one, one) == 0.0
    assert difference(one, other) == 1.0
    assert one.checksum != other.checksum


def test_scalars_and_large_variables():
    weights = summary(3.0, np.linspace(0, 1, 10_001))
    assert weights.sample[0] == [3.0]
    assert len(weights.sample[1]) == 32 and weights.sample[1][-1] == 1.0
