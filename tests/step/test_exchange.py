"""Buckets: every tensor travels exactly once, within the bound, and comes back as it was."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.options import Options
from tfdist.step import exchange, totals

_SHAPES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.sampled_from([tf.float32, tf.float16, tf.float64]),
    ),
    min_size=1,
    max_size=12,
)


def _specs(shapes):
    return [tf.TensorSpec(shape, dtype) for shape, dtype in shapes]


@given(_SHAPES, st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_every_tensor_is_in_one_bucket_of_its_dtype_within_the_bound(shapes, bucket_bytes):
    specs = _specs(shapes)
    buckets = exchange.plan_buckets(specs, bucket_bytes)
    indices = [index for bucket in buckets for index in bucket.indices]
    assert sorted(indices) == list(range(len(specs)))
    for bucket in buckets:
        assert {specs[index].dtype for index in bucket.indices} == {bucket.dtype}
        size = sum(math.prod(specs[i].shape) for i in bucket.indices) * bucket.dtype.size
        assert size <= bucket_bytes or len(bucket.indices) == 1
        assert list(bucket.indices) == sorted(bucket.indices)


@given(_SHAPES, st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_unpacking_gives_what_was_packed(shapes, bucket_bytes):
    specs = _specs(shapes)
    tensors = [
        tf.reshape(tf.range(math.prod(shape), dtype=tf.float64) + index, shape)
        for index, (shape, _) in enumerate(shapes)
    ]
    tensors = [tf.cast(tensor, spec.dtype) for tensor, spec in zip(tensors, specs)]
    packing = exchange.Packing(tensors, specs, bucket_bytes)
    for tensor, back in zip(tensors, packing.unpack(packing.pack(tensors))):
        np.testing.assert_array_equal(tensor.numpy(), back.numpy())
        assert tensor.dtype == back.dtype


def test_missing_and_sparse_gradients_keep_their_places():
    sparse = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 4]), tf.constant([5, 3]))
    gradients = [None, tf.ones((2,)), sparse, None, tf.zeros((3,))]
    specs = [tf.TensorSpec(shape, tf.float32) for shape in [(1,), (2,), (5, 3), (7,), (3,)]]
    packing = exchange.Packing(gradients, specs, 1000)
    packed = packing.pack(gradients)
    assert [len(value.shape) for value in packed[:-1]] == [1]
    assert packed[-1] is sparse
    back = packing.unpack(packed)
    assert back[0] is None and back[3] is None and back[2] is sparse
    np.testing.assert_array_equal(back[1].numpy(), [1.0, 1.0])


def test_sums_begin_with_the_last_gradients(monkeypatch):
    sparse = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([0, 4]), tf.constant([5, 3]))
    gradients = [tf.ones((5,)), sparse, tf.ones((4,)), tf.ones((3,)), tf.ones((30,))]
    specs = [tf.TensorSpec(shape) for shape in [(5,), (5, 3), (4,), (3,), (30,)]]
    packing = exchange.Packing(gradients, specs, 40)
    summed = []

    def all_reduce(values):
        summed.extend(values)
        return [2 * value for value in values if value is not sparse] or [sparse]

    monkeypatch.setattr(exchange, "all_reduce", all_reduce)
    sums = packing.unpack(packing.sum(packing.pack(gradients)))
    assert summed[0] is sparse
    assert [len(value) for value in summed[1:]] == [30, 3, 9]
    assert sums[1] is sparse
    for place in (0, 2, 3, 4):
        np.testing.assert_array_equal(sums[place].numpy(), 2 * gradients[place].numpy())


def test_a_bound_of_no_bytes_joins_nothing():
    gradients = [tf.ones((2, 3)), tf.ones((4,)), tf.zeros(())]
    packing = exchange.Packing(gradients, [tf.TensorSpec(g.shape) for g in gradients], 0)
    assert [len(value) for value in packing.pack(gradients)] == [6, 4, 1]


def test_one_exchange_per_bucket_and_not_per_variable(two_replicas, monkeypatch):
    reduced = []
    original = type(two_replicas.extended)._batch_reduce_to

    def counting(self, op, pairs, options):
        reduced.extend(pairs)
        return original(self, op, pairs, options)

    monkeypatch.setattr(type(two_replicas.extended), "_batch_reduce_to", counting)
    values = [tf.ones((10,)) for _ in range(30)]
    specs = [tf.TensorSpec((10,), tf.float32)] * 30
    packing = exchange.Packing(values, specs, 400)

    @tf.function
    def step():
        return two_replicas.run(lambda: packing.unpack(packing.sum(packing.pack(values))))

    result = two_replicas.experimental_local_results(step())
    assert len(reduced) == 3
    np.testing.assert_array_equal(result[1][29].numpy(), np.full(10, 2.0))


@pytest.mark.parametrize("bucket_bytes", [1, 64, 1 << 22])
def test_bucket_size_does_not_change_the_result(bucket_bytes, two_replicas):
    values = [tf.constant([1.0, 2.0]), tf.constant([[3.0]]), tf.constant(4.0)]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    packing = exchange.Packing(values, specs, bucket_bytes)

    @tf.function
    def step():
        return two_replicas.run(lambda: packing.unpack(packing.sum(packing.pack(values))))

    parts = [two_replicas.experimental_local_results(part)[0] for part in step()]
    for part, value in zip(parts, values):
        np.testing.assert_array_equal(part.numpy(), 2 * value.numpy())


@pytest.mark.parametrize(("bucket_bytes", "operations"), [(1000, 12), (40, 24), (160, 12)])
def test_a_model_that_one_bucket_could_hold_travels_in_several(
    two_replicas, monkeypatch, bucket_bytes, operations
):
    monkeypatch.setattr(exchange, "SMALL_BYTES", 40)
    specs = [tf.TensorSpec((1000, 1)), *[tf.TensorSpec((10,))] * 24]
    with two_replicas.scope():
        summed = totals.Totals(Options(bucket_bytes=bucket_bytes), specs, ["path"] * 25)

    def of_replica():
        # By chance, as the rows that samples look up: fixed ones would be compared.
        row = tf.random.uniform([1], 0, 1000, tf.int32)
        sparse = tf.IndexedSlices(tf.ones((1, 1)), row, tf.constant([1000, 1]))
        gradients = [sparse, *[tf.ones(spec.shape) for spec in specs[1:]]]
        packing = summed.packing(gradients, accumulates=False)
        return summed.sum(packing, packing.pack(gradients), tf.constant(0, tf.int64))

    @tf.function
    def step():
        return two_replicas.run(of_replica)

    graph = step.get_concrete_function().graph
    assert sum(op.type == "AddN" for op in graph.get_operations()) == operations
