"""The two exchanges of a sharded update, among the devices of this process."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step.sharding import exchange
from tfdist.step.sharding.parts import Parts

_SHAPES = [(7, 3), (5,), (), (3, 3, 2, 5), (40, 6)]
_DTYPES = [tf.float32, tf.float32, tf.float32, tf.float64, tf.float32]


@pytest.mark.parametrize("largest", [None, 64])
@pytest.mark.parametrize("bucket_bytes", [1, 200, 2**20])
@pytest.mark.parametrize("replicas", [2, 3])
def test_parts_of_sums_and_the_whole_again(replicas, bucket_bytes, largest):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    strategy.engine.largest_message = largest
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(_SHAPES, _DTYPES)]
    parts = [Parts.of(spec, replicas) for spec in specs]
    rng = np.random.default_rng(1)
    given = [
        [rng.normal(size=spec.shape).astype(spec.dtype.as_numpy_dtype) for spec in specs]
        for _ in range(replicas)
    ]

    @tf.function
    def run():
        def step():
            number = int(tf.get_static_value(_id()))
            tensors = [tf.constant(value) for value in given[number]]
            own = exchange.reduce_scatter(tensors, parts, bucket_bytes)
            return own, exchange.all_gather(own, parts, bucket_bytes)

        return strategy.run(step)

    own, whole = run()
    for place, spec in enumerate(specs):
        total = sum(values[place] for values in given)
        for number, value in enumerate(strategy.experimental_local_results(own[place])):
            expected = parts[place].part_of_array(total, number)
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)
        copies = [v.numpy() for v in strategy.experimental_local_results(whole[place])]
        assert len(copies) == replicas
        for copy in copies:
            assert copy.shape == tuple(spec.shape)
            np.testing.assert_allclose(copy, total, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(copy, copies[0])


def _id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group
