"""Where a global batch is cut."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfdist.balance import parts

_WEIGHTS = st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda w: sum(w) > 1e-3)


def _bounds(shares, size):
    ends = np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
    return parts.bounds(tf.constant(ends), size).numpy()


@hypothesis.given(_WEIGHTS, st.integers(0, 1000))
def test_parts_cover_the_batch_in_order_and_are_near_to_the_shares(weights, size):
    shares = np.array(weights) / sum(weights)
    bounds = _bounds(shares, size)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, size)
    assert (sizes >= (size >= len(shares))).all()
    # A part is rounded at both ends; parts that must have a sample take it from others.
    if size < len(shares) or (shares * size >= 2).all():
        assert (np.abs(sizes - shares * size) <= 1).all()


def test_even_shares_of_a_batch_that_divides_are_even():
    assert _bounds([0.25] * 4, 32).tolist() == [0, 8, 16, 24, 32]


def test_each_replica_has_a_sample_where_there_are_enough():
    assert _bounds([1.0, 0.0, 0.0], 3).tolist() == [0, 1, 2, 3]
    assert _bounds([0.0, 0.0, 1.0], 8).tolist() == [0, 1, 2, 8]
    assert _bounds([1.0, 0.0, 0.0], 2)[-1] == 2


def test_all_kinds_of_tensors_are_cut():
    batch = {
        "dense": tf.reshape(tf.range(8), [4, 2]),
        "ragged": tf.ragged.constant([[1], [], [2, 3], [4]]),
        "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0], [0, 4]]),
        "scalar": tf.constant(7),
    }
    part = parts.part_of(batch, tf.constant([0, 0.25, 0.75, 1], tf.float64), 1).batch
    assert part["dense"].numpy().tolist() == [[2, 3], [4, 5]]
    assert part["ragged"].to_list() == [[], [2, 3]]
    assert tf.sparse.to_dense(part["sparse"]).numpy().tolist() == [[0, 2], [3, 0]]
    assert part["scalar"].numpy() == 7
