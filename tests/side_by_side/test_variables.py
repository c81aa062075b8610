"""The cost of many variables, from made-up runs; and that the models differ in nothing else."""

from __future__ import annotations

import math

import keras
import pytest
import tensorflow as tf

from benchmarks.side_by_side import models_keras, run_keras, variables, work
from benchmarks.side_by_side.runs import groups


def run_of(system: str, count: int, milliseconds: float, number: int = 0):
    phase = {"rate": "1gbit", "links": [1.2e8], "seconds": [milliseconds / 1e3] * 3, "bytes": 1e6}
    run = {"work": f"variables-{count}", "hosts": 2, "batch": 32, "loopback": "", "round": number}
    found = {"phases": [phase], "losses": [1.0], "peak_bytes": 1, "parameters": 1}
    return {"system": system, **run, **found}


FLOORS = [run_of("keras", 10, 20), run_of("keras", 1000, 60)]


@pytest.mark.parametrize("milliseconds, said", [(164, "1.04 | ≤ 1.1 | yes"), (200, "no")])
def test_what_a_step_adds_is_compared_not_the_step(milliseconds, said):
    runs = [
        *FLOORS,
        run_of("tfdist-horovod", 10, 120),
        run_of("tfdist-horovod", 1000, milliseconds),
    ]
    assert said in variables.section(groups(runs))[-1]


def test_rounds_are_compared_with_themselves():
    runs = [*FLOORS, run_of("keras", 10, 120, 1), run_of("keras", 1000, 160, 1)]
    for number, base in ((0, 0), (1, 100)):
        runs.append(run_of("tfdist-horovod", 10, base + 120, number))
        runs.append(run_of("tfdist-horovod", 1000, base + 160, number))
    assert "1.00 (1.00–1.00)" in variables.section(groups(runs))[-1]


def test_a_late_update_of_one_device_is_told_apart_from_the_exchange():
    runs = [*FLOORS, run_of("keras-late", 10, 21), run_of("keras-late", 1000, 75)]
    runs += [run_of("tfdist-horovod", 10, 61), run_of("tfdist-horovod", 1000, 115)]
    runs += [run_of("horovod", 10, 61), run_of("horovod", 1000, 115)]
    *_, text, _, _, _, row = variables.section(groups(runs))
    assert "adds 1.0 ms with 10 variables and 15.0 ms with 1000" in text
    assert "| 40.0 | 40.0 | 1.00 | ≤ 1.1 | yes |" in row


def test_the_late_update_waits_for_all_gradients():
    optimizer = run_keras.LateSGD(0.1, momentum=0.9)
    weights = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer.build(weights)

    @tf.function(autograph=False)
    def step(x):
        optimizer.apply([tf.sin(x), tf.cos(x)], weights)

    operations = step.get_concrete_function(tf.ones([1])).graph.get_operations()
    (gate,) = [o for o in operations if {"Sin", "Cos"} == {i.type for i in o.control_inputs}]
    behind = [o.type for o in operations if gate in o.control_inputs]
    assert behind.count("ReadVariableOp") >= len(weights)


def test_nothing_is_said_without_both_models_or_without_one_device():
    assert variables.section(groups([FLOORS[0], run_of("tfdist-horovod", 10, 120)])) == []
    assert variables.section(groups([run_of("horovod", c, 120) for c in work.VARIABLES])) == []


@pytest.mark.parametrize("count", work.VARIABLES)
def test_models_have_the_same_parameters_in_so_many_variables(count):
    shapes = [v.shape for v in models_keras.build(f"variables-{count}", keras).trainable_variables]
    assert len(shapes) == count
    assert sum(map(math.prod, shapes)) == work.IN_VARIABLES
