"""With `--strong` a worker has a part of the batch, and its tables a part of the rows."""

import dataclasses

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.plan import memory, models, tracing
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import Costs, Machines
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.workload import Device, TracedVariable, Workload

DENSE = TracedVariable("dense", (100, 1000), "float32", 4, 0.5)
TABLE = TracedVariable("table", (100_000, 100), "float32", 4, 1.0, rows=64)
POSITIONS = TracedVariable("positions", (50, 100), "float32", 4, 0.9, 20, rows_are_fixed=True)
ROW = 100 * 4
MOMENTS = ((80_000_000, 0), (6_400_000, DENSE.nbytes + 64 * ROW))
MODEL = Workload(64, (DENSE, TABLE), 1 / 3, 0, moments=MOMENTS)


def planner(strong, workload=MODEL):
    known = models.Found(workload, Device(1.0, 64), Costs(), [])
    machines = Machines(Link(0.0, 1e-6), costs=Costs())
    return Planner(workload, known.messages, known.device, machines, strong)


def sent(strong, workers, workload=MODEL, **options):
    return planner(strong, workload).predict(Candidate("horovod", **options), workers)


@pytest.mark.parametrize("workers", [2, 4, 5])
def test_a_worker_sends_the_rows_of_its_own_samples(workers):
    dense = 2 * (workers - 1) / workers * DENSE.nbytes
    per_row = (workers - 1) * (ROW + 4)  # with its number
    whole, part = (sent(strong, workers) for strong in (False, True))
    assert whole.sent == pytest.approx(dense + 64 * per_row)
    assert part.sent == pytest.approx(dense + -(-64 // workers) * per_row)


def test_rows_are_divided_with_sharding_too():
    whole, part = (sent(strong, 4, sharding="optimizer").sent for strong in (False, True))
    assert whole - part == pytest.approx(3 * 48 * (ROW + 4))


def test_a_table_of_positions_has_as_many_rows_for_each_part():
    both = dataclasses.replace(MODEL, variables=(DENSE, TABLE, POSITIONS), moments=())
    assert [v.rows for v in both.of_samples(16).variables] == [None, 16, 20]
    assert both.of_samples(64.0) is both


def test_a_part_of_a_batch_needs_what_a_smaller_batch_needs():
    smaller = dataclasses.replace(
        MODEL,
        batch=16,
        variables=(DENSE, dataclasses.replace(TABLE, rows=16)),
        moments=((20_000_000, 0), (1_600_000, DENSE.nbytes + 16 * ROW)),
    )
    assert MODEL.of_samples(16) == smaller
    for kind in (None, "optimizer", "parameters"):
        part = memory.bytes_per_rank(MODEL, 4, kind, 16)
        assert part == memory.bytes_per_rank(smaller, 4, kind, 16)
        assert part < memory.bytes_per_rank(MODEL, 4, kind, 64)


class Positions(keras.layers.Layer):
    def __init__(self, length):
        super().__init__()
        self.table, self.length = keras.layers.Embedding(length, 8), length

    def build(self, shape):
        self.table.build()

    def call(self, inputs):
        return inputs + self.table(tf.range(self.length))


def test_a_trace_knows_which_rows_are_fixed():
    stack = keras.Input((6,), dtype="int32"), keras.layers.Embedding(100, 8), Positions(6)
    model = keras.Sequential(stack)
    workload = tracing.trace(model, tracing.specs_of(model, 4), 4, None)
    assert [(v.rows, v.rows_are_fixed) for v in workload.variables] == [(24, False), (6, True)]


def test_a_plan_of_a_part_has_what_the_estimate_has(tmp_path):
    layers = keras.layers.Embedding(500, 64), keras.layers.Flatten()
    model = keras.Sequential([keras.Input((8,), dtype="int32"), *layers])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    found = models.read(str(tmp_path / "model.keras"), (), 4096, step=1.0)
    estimated = tfdist.memory.estimate(model, 4096, replicas=4).total
    planned = memory.bytes_per_rank(found.workload, 4, None, 1024)
    assert planned == pytest.approx(estimated, rel=0.02)
