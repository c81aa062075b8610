"""PowerSGD sees a kernel of several axes as the matrix for which the fewest bytes travel."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compression import PowerSGD
from tfdist.compression.base import Step

_MATRICES = [
    ((256, 8, 32), (256, 256)),  # a query's kernel
    ((8, 32, 256), (256, 256)),  # the kernel of attention's output
    ((3, 3, 64, 64), (576, 64)),  # a convolution's
    ((3, 3, 64, 1), (9, 64)),  # a depthwise convolution's
    ((100, 50), (100, 50)),
]


@pytest.mark.parametrize(("shape", "matrix"), _MATRICES)
def test_the_payload_is_that_of_the_best_matrix(shape, matrix):
    assert PowerSGD(rank=2).wire_bytes(tf.TensorSpec(shape)) == 4 * 2 * sum(matrix)


@pytest.mark.parametrize(("shape", "matrix"), _MATRICES)
def test_a_product_of_two_vectors_comes_through(shape, matrix):
    random = np.random.default_rng(1)
    rows, columns = (random.normal(size=size).astype("float32") for size in matrix)
    gradient = tf.reshape(np.outer(rows, columns), shape)
    compressor, spec = PowerSGD(rank=1), tf.TensorSpec(shape)
    seed = tf.constant([1, 2])
    exchange = compressor.exchange(gradient, compressor.init(spec), Step(seed, seed, 1))
    payload = next(exchange)
    with pytest.raises(StopIteration) as end:
        while True:
            payload = exchange.send(payload)
    np.testing.assert_allclose(end.value.value.total, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (7,), (0, 3)])
def test_what_is_no_matrix_travels_uncompressed(shape):
    assert PowerSGD(rank=1, min_bytes=0).for_variable(tf.TensorSpec(shape)) is None
