"""The memory of a rank is what `tfdist.memory.estimate` counts, and what options keep."""

import dataclasses

import keras
import pytest

import tfdist
from tfdist.local.choices import DiLoCo, LocalSGD
from tfdist.options import SHARDINGS
from tfdist.plan import memory, models
from tfdist.plan.machine import Costs, Machines, link_of
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.workload import Device, Message, TracedVariable, Workload

SIZE = 40_000_000
VECTOR = TracedVariable("w", (10_000_000,), "float32", 4, 1.0)
MODEL = Workload(64, (VECTOR,), 1 / 3, SIZE)
KINDS = (None, *SHARDINGS)


def test_memory_of_a_rank():
    sizes = [memory.bytes_per_rank(MODEL, 4, kind) / SIZE for kind in KINDS]
    # Weights, gradients, slots and sums. The weight has one dimension, so it stays whole.
    assert sizes == [4.0, 2.5, 2.5, 2.5]
    matrices = [
        TracedVariable(f"layer{n}/w", (1000, 10_000), "float32", 4, 1.0, is_divided=True)
        for n in range(2)
    ]
    model = dataclasses.replace(MODEL, variables=tuple(matrices), slot_bytes=2 * SIZE)
    # Parts of two weights, of two gradients and of the slots; five whole ones under way.
    assert memory.bytes_per_rank(model, 4, "parameters") / SIZE == 0.5 + 0.5 + 0.5 + 5
    # Where each weight belongs to one rank, one of them has the state of the whole weight.
    owned = dataclasses.replace(model, updates_whole=True)
    assert memory.bytes_per_rank(owned, 4, "optimizer") / SIZE == 2 + 2 + 1 + 0.5
    accumulating = dataclasses.replace(model, accumulation_steps=2)
    assert memory.bytes_per_rank(accumulating, 4, "optimizer") / SIZE == 2 + 2 + 0.5 + 0.5 + 2
    eager = dataclasses.replace(model, is_eager=True)
    assert memory.bytes_per_rank(eager, 4, "parameters") / SIZE == 0.5 + 0.5 + 0.5 + 4
    with pytest.raises(ValueError, match="Received: sharding='all'"):
        memory.bytes_per_rank(MODEL, 4, "all")


def test_memory_of_what_options_keep():
    # At its largest moment the passes have this, and no gradient yet.
    activations = 10 * SIZE
    model = dataclasses.replace(MODEL, moments=((activations, 0), (SIZE, SIZE)))
    machines = Machines(link_of(1e9, 5e-5), costs=Costs())
    made = Planner(model, lambda *_: [], Device(1.0, 64), machines)

    def extra(candidate, **options):
        """What comes to weights and slots, in units of the weights."""
        found = dataclasses.replace(made, **options).predict(candidate, 4)
        return found.memory / SIZE - 2

    assert extra(Candidate("horovod")) == 10
    # Gradients, sums, and the new tensors of an update: with fewer samples it has most.
    assert extra(Candidate("horovod"), strong=True) == 3
    assert extra(Candidate("parameter_server")) == 10 - 1  # without slots
    assert extra(Candidate("horovod", local=LocalSGD(8))) == 10 + 1
    assert extra(Candidate("horovod", local=DiLoCo(32))) == 10 + 2
    overlapping = DiLoCo(30, fragments=3, overlap=5)
    assert extra(Candidate("horovod", local=overlapping)) == 10 + 3
    kept = [Message(SIZE // 10, SIZE, 1.0, "gather", 1, "topk", has_residual=True)]
    found = extra(Candidate("horovod", "topk"), messages=lambda *_: kept)
    assert found == 10 + 1


def test_error_feedback_keeps_whole_tables():
    table = TracedVariable("w", (1000, 10_000), "float32", 4, 1.0, rows=8)
    made = models.Found(
        dataclasses.replace(MODEL, variables=(table,)), Device(1.0, 64), Costs(), []
    )
    planner = Planner(made.workload, made.messages, made.device, Machines(link_of(1e9, 5e-5)))
    dense, coded = (planner.predict(Candidate("horovod", name), 2) for name in (None, "topk"))
    assert coded.memory - dense.memory == SIZE


def chain():
    layers = [keras.layers.Dense(128, "tanh") for _ in range(6)]
    return keras.Sequential([keras.Input((128,)), *layers])


def words():
    layers = [keras.layers.Embedding(500, 64), keras.layers.Flatten(), keras.layers.Dense(1000)]
    return keras.Sequential([keras.Input((8,), dtype="int32"), *layers])


def regularized():
    layer = keras.layers.Dense(64, kernel_regularizer="l2")
    return keras.Sequential([keras.Input((128,)), layer, keras.layers.BatchNormalization()])


@pytest.mark.parametrize("make", [chain, words, regularized])
@pytest.mark.parametrize("samples", [8, pytest.param(4096, marks=pytest.mark.full)])
def test_a_plan_has_what_the_estimate_has(tmp_path, make, samples):
    model = make()
    model.compile("adam", "mse")
    model.save(tmp_path / "model.keras")
    found = models.read(str(tmp_path / "model.keras"), (), samples, step=1.0)
    for sharding in KINDS:
        for ranks in (1, 2, 4):
            estimated = tfdist.memory.estimate(model, ranks * samples, sharding, ranks).total
            planned = memory.bytes_per_rank(found.workload, ranks, sharding, samples)
            assert planned == estimated, (sharding, ranks)
