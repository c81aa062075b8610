"""Positions: short, and the same after the way."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.compression import positions

_CASES = st.integers(1, 3000).flatmap(
    lambda length: st.tuples(st.just(length), st.integers(1, length), st.integers(0, 99))
)


@given(_CASES, st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_decoding_gives_what_was_encoded(case, found):
    length, count, seed = case
    number = int(found * count)
    places = np.sort(np.random.default_rng(seed).choice(length, number, replace=False))
    encoded = positions.encode(tf.constant(places, tf.int32), count, length)
    assert encoded.shape[0] * encoded.dtype.size == positions.nbytes(count, length)
    decoded = positions.decode(encoded, count, length).numpy()
    np.testing.assert_array_equal(decoded, [*places, *[length] * (count - number)])


@pytest.mark.parametrize("places", [range(600), range(255), range(255, 510), [0, 254, 255, 599]])
def test_full_and_empty_blocks(places):
    places = np.array(places)
    encoded = positions._Blocks(tf.uint8).encode(tf.constant(places, tf.int32), 600, 600)
    decoded = positions._Blocks(tf.uint8).decode(encoded, 600, 600).numpy()
    np.testing.assert_array_equal(decoded[: len(places)], places)


@pytest.mark.parametrize(
    ("ratio", "most"),
    [(0.0001, 18.5), (0.001, 16.3), (0.01, 11.3), (0.1, 8.4), (0.3, 3.4), (1.0, 1.0)],
)
def test_a_position_takes_few_bits(ratio, most):
    length = 10_000_000
    count = int(ratio * length)
    assert 8 * positions.nbytes(count, length) / count <= most
