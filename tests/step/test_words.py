"""Tensors as int64: whatever their dtype and their length, all bits come back."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from tfdist.engines.words import from_words, to_words
from tfdist.strategies.horovod import under_way

DTYPES = ("uint8", "int16", "float16", "bfloat16", "float32", "int64", "float64")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (8,), (2, 0, 3), (7, 1, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_bits_come_back(dtype, shape, is_known):
    numbers = np.random.default_rng(0).integers(-9, 9, shape)
    given = tf.cast(numbers, dtype)
    spec = tf.TensorSpec(shape if is_known else [None] * len(shape), dtype)

    @tf.function(input_signature=[spec])
    def there_and_back(tensor):
        words = to_words(tensor)
        assert words.dtype == tf.int64
        return from_words(words, tensor), tf.size(words)

    found, count = there_and_back(given)
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert tf.io.serialize_tensor(found) == tf.io.serialize_tensor(given)
    assert count == -(-numbers.size * given.dtype.size // 8)


def test_what_is_under_way_keeps_no_graph():
    graphs = under_way.of_graphs()
    graph = tf.Graph()
    with graph.as_default():
        one = under_way.of(graphs)
        one.before(tf.zeros([2]))
        one.add(tf.zeros([2], name="result"))
    assert len(graphs) == 1
    del graph, one
    gc.collect()
    assert not graphs


def test_only_so_many_bytes_are_under_way(monkeypatch):
    monkeypatch.setattr(under_way, "_MOST_BYTES", 24)
    with tf.Graph().as_default():
        one, waits = under_way.UnderWay(), []
        for number in range(5):
            waits.append([operation.name for operation in one.before(tf.zeros([2]))])
            one.add(tf.zeros([2], name=f"result{number}"))
    assert waits == [[], [], [], ["result0"], ["result1"]]
