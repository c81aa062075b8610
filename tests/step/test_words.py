"""Tensors as int64: whatever their dtype and their length, all bits come back."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.engines.words import from_words, to_words

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
