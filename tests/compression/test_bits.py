"""Digits, several to a byte."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.compression import bits


@given(st.integers(2, 256), st.integers(1, 60), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_unpacking_gives_what_was_packed(base, count, seed):
    digits = np.random.default_rng(seed).integers(0, base, count)
    packed = bits.pack(tf.constant(digits, tf.float32), base)
    assert (packed.dtype, packed.shape) == (tf.uint8, [bits.packed_size(count, base)])
    values = [10.0 * digit for digit in range(base)]
    np.testing.assert_array_equal(bits.unpack(packed, values, count), 10.0 * digits)


def test_eight_signs_are_one_byte_the_first_in_the_lowest_bit():
    digits = tf.constant([1, 0, 0, 0, 0, 0, 1, 0, 1], tf.float32)
    assert bits.pack(digits, 2).numpy().tolist() == [0b01000001, 1]


@pytest.mark.parametrize(("base", "digits"), [(2, 8), (3, 5), (4, 4), (7, 2), (16, 2), (17, 1)])
def test_a_byte_is_as_full_as_it_can_be(base, digits):
    assert bits.digits_per_byte(base) == digits
    assert base**digits <= 256 < base ** (digits + 1)
