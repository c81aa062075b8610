"""The running checksum of a data set's batches."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.processes.reading import Read, Watch

X = np.random.default_rng(0).normal(size=(20, 30)).astype("float32")
Y = np.arange(20)


def same(batch):
    return batch


def read(batches, length_is_known=True):
    """What was read after each batch."""
    watch = Watch()
    count = len(list(watch.on(batches, length_is_known, same)))
    return watch.after(range(1, count + 1))


def of(x, y, size=4):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


def test_batches_pass_unchanged():
    for (x, y), row in zip(
        Watch().on(of(X, Y), False, same), np.split(np.arange(20), 5), strict=True
    ):
        np.testing.assert_array_equal(x, X[row])
        np.testing.assert_array_equal(y, Y[row])


def test_equal_data_have_equal_checksums():
    assert read(of(X, Y)) == read(of(X.copy(), Y.copy()))


@pytest.mark.parametrize(
    ("x", "y", "kind"), [(X[::-1], Y, "inputs"), (X, np.where(Y == 9, 0, Y), "targets")]
)
def test_other_data_have_other_checksums_of_their_kind(x, y, kind):
    first, second = read(of(X, Y))[-1], read(of(x, y))[-1]
    assert [n for n in Read._fields if getattr(first, n) != getattr(second, n)] == [kind]


def test_the_first_batch_that_differs_shows():
    rows = zip(read(of(X, Y)), read(of(X, np.where(Y == 9, 0, Y))))
    assert [first == second for first, second in rows] == [True, True, False, False, False]


def test_other_sizes_have_other_checksums():
    first, second = read(of(X[:18], Y[:18]))[-1], read(of(X[:19], Y[:19]))[-1]
    assert first.sizes != second.sizes


@pytest.mark.parametrize("rows", [0, 20])
def test_the_end_of_each_pass_is_noted(rows):
    watch = Watch()
    data = watch.on(of(X[:rows], Y[:rows]), length_is_known=False, function=same)
    for number in (1, 2):
        assert len(list(data)) == rows // 4
        assert Read(*watch.latest())[:3] == (number, rows // 4, 1)


OTHERS = {
    "a dict": {"a": X, "b": Y},
    "words": (np.array(["a", "b"]), np.array([True, False])),
    "ragged": (tf.ragged.constant([[1.0, 2.0], [3.0]]), tf.constant([1, 2])),
    "sparse": (tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]]), tf.constant([1, 2])),
    "half precision": (tf.constant([[1.0], [2.0]], tf.bfloat16), tf.constant([1.0], tf.float16)),
    "complex": (tf.constant([1j, 2j]),),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_kinds_of_data_have_checksums(name):
    data = tf.data.Dataset.from_tensors(OTHERS[name])
    assert read(data)[-1].batches == 1


@pytest.mark.parametrize("length_is_known", [True, False])
def test_an_iterator_that_nobody_reads_counts_for_shuffle_as_on_one_device(length_is_known):
    def shuffled():
        return tf.data.Dataset.range(100).shuffle(100, seed=3).batch(10)

    def orders(dataset):
        found = []
        for _ in range(3):
            iter(dataset)  # Keras makes one to look at the data
            found.append([batch.numpy().tolist() for batch in dataset])
        return found

    watched = Watch().on(shuffled(), length_is_known, lambda batch: batch).prefetch(2)
    expected = orders(shuffled())
    assert expected[0] != expected[1]
    assert orders(watched) == expected
