"""The largest elements, found by a sample: exact where it is short, nearly so where it is long."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compression.selection import positions_of_largest

RANDOM = np.random.default_rng(0)


def _found(values, count, seed=0, least=0.0):
    return positions_of_largest(tf.constant(values, tf.float32), count, [seed, 1], least).numpy()


def _largest(values, count):
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:count])


@pytest.mark.parametrize("count", [1, 7, 500, 1000])
def test_short_vectors_exactly(count):
    values = RANDOM.normal(size=1000)
    np.testing.assert_array_equal(_found(values, count), _largest(values, count))


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(size=300_000),
        RANDOM.standard_cauchy(size=300_000),
        np.linspace(-1.0, 1.0, 300_000),
        np.where(np.arange(300_000) % 64 == 0, RANDOM.normal(size=300_000), 0.0),
    ],
    ids=["normal", "heavy tails", "sorted", "columns"],
)
@pytest.mark.parametrize("count", [300, 3000, 30_000])
def test_in_long_vectors_all_that_is_found_is_among_the_largest_and_little_is_missed(values, count):
    there = min(count, np.count_nonzero(values))
    for seed in range(5):
        found = _found(values, count, seed)
        assert 0.8 * there <= len(found) <= count
        assert (np.diff(found) > 0).all()
        smallest = np.abs(values[found]).min()
        assert smallest >= np.abs(values[_largest(values, count)]).min()


@pytest.mark.parametrize("count", [1, 3, 10, 33, 400, 3000])
@pytest.mark.parametrize("length", [32_769, 40_000, 300_000])
def test_few_of_a_long_vector_exactly(count, length):
    values = np.random.default_rng(count).normal(size=length)
    for seed in range(3):
        np.testing.assert_array_equal(_found(values, count, seed), _largest(values, count))


def test_zeros_are_not_chosen():
    values = np.zeros(1000)
    values[[3, 900]] = 1.0, -2.0
    assert _found(values, 10).tolist() == [3, 900]
    assert _found(np.zeros(100_000), 10).tolist() == []
    assert _found(np.zeros(10), 10).tolist() == []


@pytest.mark.parametrize("length", [1000, 100_000])
def test_above_a_threshold_all_are_found_or_the_largest_of_too_many(length):
    values = RANDOM.normal(size=length)
    reach = np.flatnonzero(np.abs(values) >= 2.0)
    np.testing.assert_array_equal(_found(values, length // 10, least=2.0), reach)
    found = _found(values, length // 100, least=2.0)
    assert 0.8 * (length // 100) <= len(found) <= length // 100
    assert np.isin(found, _largest(values, length // 100)).all()


def test_what_is_no_number_comes_first():
    values = np.ones(1000)
    values[7] = np.nan
    assert _found(values, 1).tolist() == [7]
