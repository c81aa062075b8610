"""The data sets of which processes read their parts, without the other processes."""

import pytest
import tensorflow as tf

from tfdist.data import shards

VALUES = tf.reshape(tf.range(18.0), [6, 3])
RAGGED = {
    "uniform rows": tf.RaggedTensor.from_row_lengths(VALUES, [2, 0, 3, 1]),
    "uniform rows of rows": tf.RaggedTensor.from_row_lengths(
        tf.RaggedTensor.from_row_lengths(VALUES, [2, 0, 3, 1]), [1, 0, 2, 1]
    ),
    "numbers": tf.RaggedTensor.from_row_lengths(VALUES[:, 0], [2, 0, 3, 1]),
}


def batches(kind):
    return tf.data.Dataset.from_tensor_slices(RAGGED[kind]).batch(2)


@pytest.mark.parametrize("kind", RAGGED)
def test_sizes_of_ragged_batches_are_forgotten(kind):
    found = list(shards.with_unknown_sizes(batches(kind)))
    assert [x.to_list() for x in found] == [x.to_list() for x in batches(kind)]


@pytest.mark.parametrize("kind", RAGGED)
def test_ragged_batches_are_followed_by_empty_ones(kind):
    whole, end = RAGGED[kind], list(shards.padded(batches(kind), 4))[2:]
    for batch in end:
        assert batch.shape.rank == whole.shape.rank
        assert batch.flat_values.shape[1:] == whole.flat_values.shape[1:]
        assert batch.nrows() == 0


@pytest.mark.parametrize("absent", [None, tf.experimental.Optional.empty(None)])
def test_what_is_none_cannot_be_shared_and_the_error_says_so(absent):
    data = tf.data.Dataset.from_tensors((VALUES, absent))
    with pytest.raises(ValueError, match=r"leave out what is None.* Received: element_spec=\("):
        shards.with_unknown_sizes(data)
    assert shards.static_batch_size(data.element_spec[::-1]) == 6
