"""Several strategies in one process; loops of one's own; what processes refuse to exchange."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multi_process import checks
from tests.multi_process.jobs import ALL, HOROVOD, MANY_HALVES, MULTI_WORKER, scenario
from tests.multi_process.reference import OneDevice, X
from tests.multi_process.scenarios import strategies
from tfdist.options import DEFAULT_BUCKET_BYTES


@pytest.mark.full
@scenario(strategies.several)
def test_several_strategies_train_in_turns(found):
    first, second = OneDevice().train(2), OneDevice(accumulation_steps=2).train(2)
    checks.trained(found, first, "first")
    checks.trained(found, second, "second")
    for rank in found:
        for metrics, device in zip(rank["metrics"], (first, second), strict=True):
            np.testing.assert_allclose(
                metrics, list(device.evaluate(range(67)).values()), **checks.METRICS
            )


@scenario(strategies.several)
def test_a_scope_inside_another_strategys_is_refused(found):
    for rank in found:
        assert rank["nested"].startswith("RuntimeError: The scope of another strategy is active")


@scenario(strategies.loop_with_changing_sizes)
def test_a_loop_with_batches_of_changing_sizes_equals_one_device(found):
    expected = OneDevice()
    losses = [expected.batch(rows)["loss"] for rows in strategies.LOOP_ROWS]
    checks.trained(found, expected)
    for rank in found:
        np.testing.assert_allclose(rank["losses"], losses, **checks.METRICS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bfloat16", "ValueError: Processes cannot exchange variables and gradients in bf"),
        ("strings", "Processes can exchange predictions that are dense numbers only"),
        ("ragged", "Processes can exchange predictions that are dense numbers only"),
    ],
)
@scenario(strategies.cannot_be_exchanged)
def test_what_cannot_be_exchanged_is_refused_by_all_ranks(found, name, message):
    for rank in found:
        assert message in rank[name]
        assert "Received: " in rank[name]


@scenario(strategies.broadcasts, ALL)
def test_arrays_of_all_kinds_arrive_bit_by_bit(found):
    for rank in found:
        assert all(rank["equal"])


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8"])
@scenario(strategies.predictions_of_other_dtypes)
def test_predictions_of_other_dtypes_are_those_of_one_device(found, dtype):
    expected = tf.cast(tf.constant(X), dtype)
    for rank in found:
        name, values = rank[dtype]
        assert name == dtype
        np.testing.assert_array_equal(values, tf.cast(expected, tf.float32))


@scenario(strategies.orders_of_operations, MULTI_WORKER)
def test_eight_operations_of_tensorflow_are_under_way_at_a_time(found):
    for rank in found:
        assert rank == {"operations": 24, "orders": 8}


@scenario(strategies.fusion_threshold, HOROVOD)
def test_horovod_joins_twice_as_many_bytes_as_the_first_strategy_says(found):
    for rank in found:
        assert rank == {"bytes": str(2 * DEFAULT_BUCKET_BYTES)}


@scenario(strategies.sums_of_half_precision, (*MANY_HALVES, "horovod-2"))
def test_sums_of_half_precision_are_rounded_once(found):
    replicas = found[0]["replicas"]
    parts = zip(*(strategies.halves(replica) for replica in range(replicas)))
    expected = [sum(part.astype("float32") for part in own).astype("float16") for own in parts]
    expected.insert(1, np.float32([sum(range(replicas))]))
    for rank in found:
        assert [name for name, _ in rank["sums"]] == [total.dtype.name for total in expected]
        for (_, totals), exact in zip(rank["sums"], expected):
            for total in totals:
                np.testing.assert_array_equal(np.array(total, exact.dtype), exact)
        for own in rank["gradients"]:
            assert np.all(np.array(own) == sum(range(replicas + 1)))
