"""Payloads arrive as they were sent, and in few operations."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.step import exchange, wire

DTYPES = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.float32, tf.float16, tf.bfloat16]


def _run(strategy, function):
    """What `function(replica id)` returned on each replica."""

    @tf.function
    def step():
        def of_replica():
            context = tf.distribute.get_replica_context()
            return function(context.replica_id_in_sync_group)

        return strategy.run(of_replica)

    return [
        [strategy.experimental_local_results(value)[replica] for value in step()]
        for replica in range(strategy.num_replicas_in_sync)
    ]


def _payload(replica):
    """One tensor of each dtype and of several sizes, another one on each replica."""
    return [
        tf.cast(tf.reshape(tf.range(size) + replica, shape), dtype)
        for dtype in DTYPES
        for size, shape in ((3, [3]), (4, [2, 2]), (1, [1]))
    ]


@pytest.mark.parametrize("largest", [None, 8])
def test_everything_is_gathered_bit_by_bit(strategy, largest):
    strategy.engine.largest_message = largest
    found = _run(strategy, lambda replica: wire.gather_from_replicas(_payload(replica)))
    sent = [_payload(tf.constant(r)) for r in range(strategy.num_replicas_in_sync)]
    assert [len(replica) for replica in found] == [3 * len(DTYPES)] * len(sent)
    for replica in found:
        for index, rows in enumerate(replica):
            expected = tf.stack([payload[index] for payload in sent])
            assert (rows.dtype, rows.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_sums_of_half_precision_are_as_exact_as_the_engine_allows(strategy, dtype):
    value = 1.0 + 1.0 / 128  # few bits
    found = _run(
        strategy,
        lambda replica: wire.sum_over_replicas([tf.fill([5], tf.cast(value, dtype))], 100),
    )
    replicas = strategy.num_replicas_in_sync
    assert len(found) == replicas
    for (total,) in found:
        exact = dtype != tf.float16 or replicas == 2
        assert total.dtype == (tf.float32 if exact else tf.float16)
        np.testing.assert_allclose(
            tf.cast(total, tf.float32), replicas * value, rtol=0 if exact else 1e-3
        )


def test_sums_share_buckets(strategy):
    tensors = [[2], [3, 3], [1]]

    @tf.function
    def step():
        return strategy.run(
            lambda: wire.sum_over_replicas([tf.ones(shape) for shape in tensors], 1000)
        )

    for value, shape in zip(step(), tensors):
        for local in strategy.experimental_local_results(value):
            np.testing.assert_array_equal(local, np.full(shape, strategy.num_replicas_in_sync))
    sums = [op for op in step.get_concrete_function().graph.get_operations() if op.type == "AddN"]
    assert len(sums) == 1


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_much_travels_in_several_operations(two_replicas, monkeypatch, dtype):
    monkeypatch.setattr(exchange, "SMALL_BYTES", 8)

    @tf.function
    def step():
        def of_replica():
            return wire.sum_over_replicas([tf.ones([4], dtype)] * 24, 1000)

        return two_replicas.run(of_replica)

    for value in step():
        for local in two_replicas.experimental_local_results(value):
            np.testing.assert_array_equal(local, [2.0] * 4)
    sums = [op for op in step.get_concrete_function().graph.get_operations() if op.type == "AddN"]
    assert len(sums) == 12


def test_nothing_is_no_operation(strategy):
    assert wire.gather_from_replicas([]) == []
    assert _run(strategy, lambda _: [tf.constant(len(wire.sum_over_replicas([], 9)))])
