"""What is planned to travel is what travels."""

import dataclasses

import keras
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.compression import PowerSGD
from tfdist.compression.choice import Choice
from tfdist.plan.messages import messages_of
from tfdist.plan.workload import TracedVariable, Workload
from tfdist.step.exchange import SMALL_BYTES
from tfdist.step.tables import Tables


def workload(*shapes, rows=None, tables=Tables.NONE):
    count = len(shapes)
    variables = [
        TracedVariable(f"v{i}", shape, "float32", 4, 1 - i / count, rows if i == 0 else None)
        for i, shape in enumerate(shapes)
    ]
    return Workload(8, tuple(variables), 1 / 3, 0, 0, tables)


SHAPES = ((100, 300), (300,), (300, 200), (200,), (200, 10), (10,))


@pytest.mark.parametrize("name", ["fp16", "int8", "topk", "powersgd", "signsgd", "qsgd"])
def test_payloads_are_those_of_the_live_optimizer(name):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=name)
    with strategy.scope():
        stack = [keras.Input((100,)), *(keras.layers.Dense(n) for n in (300, 200, 10))]
        model = keras.Sequential(stack)
        model.compile("sgd", "mse")
    model.fit(tf.zeros((8, 100)), tf.zeros((8, 10)), verbose=0)
    live = sorted(unit.wire_bytes for unit in model.optimizer.compressed.units)
    found = messages_of(workload(*SHAPES), Choice.of(name), 2)
    assert sorted(message.payload for message in found if message.compressor) == live
    assert len(live) > 0
    assert sum(message.dense for message in found) == 4 * model.count_params()
    assert sum(message.tensors for message in found) == len(SHAPES)


def test_dense_gradients_leave_in_buckets_last_layers_first():
    found = messages_of(workload(*SHAPES), None, 2)
    assert sum(message.payload for message in found) == 4 * (30000 + 300 + 60000 + 200 + 2010)
    assert [message.ready for message in found] == sorted(message.ready for message in found)
    assert len(found) == 2 and max(m.payload for m in found) <= SMALL_BYTES
    assert len(messages_of(workload(*SHAPES), None, 2, bucket_bytes=1000)) == 6
    assert sum(message.tensors for message in found) == len(SHAPES)


def test_powersgd_has_two_exchanges():
    found = messages_of(workload((500, 500)), Choice.of("powersgd"), 2)
    assert [(m.payload, m.exchanges, m.aggregation) for m in found] == [(16000, 2, "sum")]


def test_warm_ups_are_over():
    late = tfdist.compression.DGC(ratio=0.01, warmup_steps=100, momentum=0.0)
    found = messages_of(workload((500, 500)), Choice.of(late), 2)
    after = [c.wire_bytes(tf.TensorSpec([250_000], tf.float32)) for _, c in late.stages()]
    assert len(set(after)) > 1 and [m.payload for m in found] == after[-1:]


def test_rows_travel_or_the_table_if_that_is_less():
    few, many = (workload((1000, 16), (10,), rows=rows, tables=Tables.SUMS) for rows in (50, 5000))
    (table,) = [m for m in messages_of(many, None, 2) if m.payload > 1000]
    assert (table.payload, table.aggregation) == (64000, "sum")
    (rows,) = [m for m in messages_of(few, None, 2) if m.payload > 1000]
    assert (rows.payload, rows.aggregation) == (50 * (64 + 4), "gather")
    # With more ranks, all rows together are more bytes than the table.
    assert max(m.payload for m in messages_of(few, None, 100)) == 64000
    always = workload((1000, 16), (10,), rows=5000)
    assert max(m.payload for m in messages_of(always, None, 2)) == 5000 * 68


def test_a_table_of_several_sums_is_larger():
    few, many = (
        workload((1000, 16), (10,), rows=rows, tables=Tables.SQUARES) for rows in (1941, 1942)
    )
    (rows,) = [m for m in messages_of(few, None, 2) if m.payload > 1000]
    assert (rows.payload, rows.aggregation) == (1941 * 68, "gather")
    (table,) = [m for m in messages_of(many, None, 2) if m.payload > 1000]
    assert (table.payload, table.dense, table.aggregation) == (132000, 132000, "sum")


@pytest.mark.parametrize(
    ("tables", "aggregation"), [(Tables.SUMS, "sum"), (Tables.SQUARES, "gather")]
)
def test_rows_that_are_alike_on_all_ranks_are_no_table_of_several_sums(tables, aggregation):
    made = workload((1000, 16), rows=5000, tables=tables)
    fixed = dataclasses.replace(made.variables[0], rows_are_fixed=True)
    (found,) = messages_of(dataclasses.replace(made, variables=(fixed,)), None, 2)
    assert found.aggregation == aggregation


@pytest.mark.parametrize(
    ("compression", "rows"),
    [("fp16", (50 * (32 + 4), "fp16")), ("int8", (50 * (64 + 4), None))],
)
def test_what_rounds_each_number_rounds_rows_too(compression, rows):
    found = messages_of(workload((1000, 16), (500, 500), rows=50), Choice.of(compression), 2)
    (of_rows,) = [m for m in found if m.dense == 50 * (64 + 4)]
    assert (of_rows.payload, of_rows.compressor) == rows
    (other,) = [m for m in found if m is not of_rows]
    assert other.compressor == compression


def test_a_small_table_is_compressed_as_a_table_if_rows_are_summed():
    # PowerSGD of rank 4 sends 16 bytes for each row and column, and 16 KiB for all such tables.
    small, large = (
        workload((size, 16), (500, 500), rows=50, tables=Tables.SUMS) for size in (1008, 1009)
    )
    every = [m.payload for m in messages_of(small, Choice.of(PowerSGD(rank=4)), 2)]
    assert sorted(every) == [16 * 1000, 16 * 1024]
    every = [m.payload for m in messages_of(large, Choice.of(PowerSGD(rank=4)), 2)]
    assert sorted(every) == [50 * 68, 16 * 1000]
    apart = workload((1008, 16), (500, 500), rows=50)
    assert max(m.payload for m in messages_of(apart, Choice.of(PowerSGD(rank=4)), 2)) == 16 * 1000
