"""How variables are divided into parts."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.step.sharding.parts import Parts

_SHAPES = [(), (1,), (5,), (12,), (7, 3), (2, 9), (1, 50000), (3, 3, 2, 5), (0,), (0, 4)]


def _parts(shape, replicas):
    return Parts.of(tf.TensorSpec(shape, tf.float32), replicas)


def _value(shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("shape", _SHAPES)
def test_parts_are_equal_and_make_the_whole(shape, replicas):
    parts, value = _parts(shape, replicas), _value(shape)
    divided = parts.divided(tf.constant(value)).numpy()
    assert divided.shape == (replicas, parts.length)
    np.testing.assert_array_equal(parts.joined(tf.constant(divided)).numpy(), value)
    arrays = [parts.part_of_array(value, replica) for replica in range(replicas)]
    np.testing.assert_array_equal(parts.array_of_parts(arrays), value)
    for replica, array in enumerate(arrays):
        part = parts.part(tf.constant(value), replica).numpy()
        assert part.shape == array.shape == parts.part_shape
        np.testing.assert_array_equal(part, array)
        np.testing.assert_array_equal(part.ravel(), divided[replica])


def test_no_part_is_much_larger_than_the_share():
    for shape in [(2048, 2048), (50000, 64), (3, 3, 256, 512), (100_000,), (1, 50000)]:
        for replicas in (2, 3, 4):
            parts = _parts(shape, replicas)
            assert parts.length * replicas <= parts.size * 9 / 8


def test_tables_are_cut_between_rows():
    assert _parts((7, 3), 2).part_shape == (4, 3)
    assert _parts((50000, 64), 3).part_shape == (16667, 64)
    assert not _parts((3, 50000), 2).of_rows  # a fourth row would be too much
    assert not _parts((3, 3, 2, 5), 2).of_rows


@pytest.mark.parametrize("replicas", [2, 3])
def test_rows_of_a_sparse_gradient_go_to_their_part(replicas):
    parts = _parts((7, 3), replicas)
    indices = [6, 0, 3, 3, 4]
    values = _value((5, 3))
    rows = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant((7, 3)))
    dense = np.zeros((7, 3), "float32")
    np.add.at(dense, indices, values)
    found = [parts.rows_of_part(rows, replica) for replica in range(replicas)]
    assert sum(len(some.indices) for some in found) == 5  # rows that come twice stay two rows
    own = [tf.convert_to_tensor(some).numpy() for some in found]
    np.testing.assert_allclose(parts.array_of_parts(own), dense, rtol=1e-6)
