"""Every engine carries tensors as its contract says; those of processes: tests/multi_process."""

import inspect
import types

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.step.engines import DTYPES, assert_equal, given, of_replicas, results
from tfdist.engines.contract import Engine
from tfdist.engines.current import current
from tfdist.engines.replica_context import ReplicaContextEngine
from tfdist.strategies.horovod.engine import HorovodEngine
from tfdist.strategies.multi_worker.engine import CollectivesEngine
from tfdist.strategies.multi_worker.numbered_engine import NumberedEngine, Numbers

OPERATIONS = [name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if name[0] != "_"]


def _by_replica(strategy, dtype):
    function = tf.function(lambda: strategy.run(results, args=(given, dtype)), autograph=False)
    found = {n: strategy.experimental_local_results(v) for n, v in function().items()}
    return [
        {name: np.asarray(values[replica]) for name, values in found.items()}
        for replica in range(strategy.num_replicas_in_sync)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_of_one_process_get_what_numpy_gives(replicas, dtype):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    for found, expected in zip(
        _by_replica(strategy, dtype), of_replicas(replicas, dtype), strict=True
    ):
        assert_equal(found, expected)


def test_workers_of_one_process_use_collective_operations():
    strategy = tfdist.MultiWorkerMirroredStrategy()
    assert isinstance(strategy.engine, CollectivesEngine)
    for found, expected in zip(
        _by_replica(strategy, "float32"),
        of_replicas(strategy.num_replicas_in_sync, "float32"),
        strict=True,
    ):
        assert_equal(found, expected)


def test_a_strategy_of_tensorflow_has_the_engine_of_its_replica_context():
    strategy = tf.distribute.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        assert type(current()) is ReplicaContextEngine
    for found, expected in zip(
        _by_replica(strategy, "float32"), of_replicas(2, "float32"), strict=True
    ):
        assert_equal(found, expected)


# What the contract makes of other operations, where an engine has no quicker way.
_FROM_OTHERS = ("all_gather_parts",)


@pytest.mark.parametrize("engine", [ReplicaContextEngine, CollectivesEngine, HorovodEngine])
def test_an_engine_implements_every_operation_with_the_arguments_of_the_contract(engine):
    assert {"all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter"} <= {
        *OPERATIONS
    }
    for name in OPERATIONS:
        declared, made = getattr(Engine, name), getattr(engine, name)
        assert made is not declared or name in _FROM_OTHERS, name
        assert [*inspect.signature(made).parameters] == [*inspect.signature(declared).parameters]


def test_a_broadcast_keeps_every_bit():
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    value = tf.constant([-0.0, np.nan, np.inf, 1e-45])
    received = strategy.run(lambda: current().broadcast(value, root=1))
    for part in strategy.experimental_local_results(received):
        assert part.numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_has_no_elements_does_not_travel(dtype):
    numbers = Numbers()
    numbers.begin(1, 3)
    engine = NumberedEngine(types.SimpleNamespace(rank=1, size=3), numbers, 1)

    @tf.function(autograph=False)
    def step():
        vector, rows = tf.zeros([0], dtype), tf.zeros([3, 0], dtype)
        sums = engine.all_reduce([vector, rows])
        return [*sums, engine.all_to_all(rows), engine.reduce_scatter(vector)]

    operations = {one.type for one in step.get_concrete_function().graph.get_operations()}
    assert not [name for name in operations if name.startswith("Collective")]
    assert [one.shape.as_list() for one in step()] == [[0], [3, 0], [3, 0], [0]]
