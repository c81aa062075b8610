"""Every public constructor and function refuses what it cannot use, and shows what it received."""

import inspect
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import (
    callbacks,
    cluster,
    compression,
    memory,
    pipeline,
    staleness,
    tensor_parallel,
    testing,
)
from tfdist.strategies.horovod.backend import is_installed

NUMBERS = {
    "negative": -1,
    "half": 0.5,
    "too large for int64": 2**63,
    "too large for a float": 10**400,
    "too long to be printed": 10**5000,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "too large for float32": 1e308,
    "too small for float32": 1e-308,
}
OTHERS = {
    "true": True,
    "text": "no such thing",
    "empty text": "",
    "list": [],
    "list of none": [None],
    "dict": {},
    "other dict": {"a": 1},
    "object": object(),
    "class": dict,
    "array": np.array([1, 2]),
    "tensor": tf.constant(3),
    "function": lambda: 3,
    "bytes": b"x",
}
EVERYTHING = NUMBERS | OTHERS

# What of these an argument takes, by its name.
SMALL = {"half", "too large for int64"}
TAKES = {
    "error_feedback": {"true"},
    "momentum_correction": {"true"},
    "log_all_ranks": {"true"},
    "balance": {"true"},
    "backup": {"true"},
    "adaptive": {"true"},
    "ratio": {"half"},
    "max_ratio": {"half"},
    "momentum": {"half", "too small for float32"},
    "outer_learning_rate": {*SMALL, "too small for float32"},
    "outer_momentum": {"half", "too small for float32"},
    "mixing_factor": {"half", "too small for float32"},
    "jobs": {"dict"},
    "threshold": SMALL,
    "clip": SMALL,
    "max_residual": {*SMALL, "too small for float32"},
    "min_cosine": {*SMALL, "too small for float32"},
    "initial_lr": SMALL,
    "warmup_epochs": {*SMALL, "too small for float32"},
    "steps_per_epoch": {"too large for int64"},
    "multiplier": {"too large for int64"},
    "lam": {*SMALL, "too small for float32"},
    "power": {*SMALL, "too small for float32"},
    "policies": {"list"},
    "environ": {"dict", "other dict"},
    "snapshot_dir": {"text"},
    "step": {"class", "function"},
    "timeout": {"half", "too small for float32", "tensor"},
}
# Those that are for anything: a custom loop's loss; what becomes a name; what a probe has found;
# what goes to `model.evaluate`.
FOR_ANYTHING = {
    "scale_loss": {"loss"},
    "choose_strategy": {"local_devices", "horovod_installed"},
    "SidecarEvaluator": {"data"},
    "FeedForward": {"activation", "name"},  # given to Keras
}


def _model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


JOBS = {"worker": ("a:1", "b:1")}
CLUSTER = {"jobs": JOBS, "task_type": "worker", "task_index": 0}
GIVEN = {
    "MirroredStrategy": {"devices": DEVICES[:2]},
    "Strategy": {"name": "mirrored"},
    "DistributedOptimizer": {"inner_optimizer": "sgd"},
    "LearningRateWarmup": {"initial_lr": 0.1},
    "local_step": {"step": _model},
    "LocalSGD": {"steps": 1},
    "DiLoCo": {"steps": 2, "overlap": 1},  # or nothing is mixed
    "Timeline": {"path": "trace.json"},
    "StalenessMonitor": {"strategy": type("Strategy", (), {"staleness_report": dict})()},
    "SSP": {"slack": 1},
    "stages": {"model": _model(), "devices": DEVICES[:1]},
    "estimate": {"model": _model(), "batch_size": 1},
    "Bounded": {"max_staleness": 1},
    "get": {"compressor": "topk"},
    "SidecarEvaluator": {"model": _model(), "data": np.ones((1, 1)), "checkpoint_dir": "."},
    "Cluster": CLUSTER,
    "choose_strategy": {"environ": {}, "local_devices": 1, "horovod_installed": True},
    "wait_for_peers": {"addresses": ["localhost:1"], "rank": 0, "timeout": 0.1},
    "wait_for_servers": {"cluster": cluster.Cluster(**CLUSTER), "timeout": 0.1},
}
if is_installed():
    keras.utils.set_random_seed(0)
    MESH = tensor_parallel.Mesh()
    GIVEN |= {
        "Dense": {"units": 4, "mesh": MESH},
        "FeedForward": {"hidden": 4, "units": 4, "mesh": MESH},
        "MultiHeadAttention": {"num_heads": 2, "key_dim": 2, "mesh": MESH},
        "Embedding": {"input_dim": 4, "output_dim": 2, "mesh": MESH},
    }
NAMES = {"text", "empty text"}
TAKES_HERE = {
    ("DistributedOptimizer", "name"): NAMES,
    ("RunReport", "log_dir"): {"text"},
    ("RunReport", "path"): {"text"},
    ("StalenessMonitor", "log_dir"): {"text"},
    ("Timeline", "path"): {"text"},
    ("stages", "cuts"): {"list"},  # of one stage
    ("estimate", "inputs"): {"array"},  # one number for each sample
    ("SidecarEvaluator", "checkpoint_dir"): {"text"},
    ("SidecarEvaluator", "callbacks"): {"list"},
}


def _local_cluster(workers=2, ps=1):
    with cluster.local_cluster(workers, ps):
        pass


def _callables():
    found = [getattr(tfdist, name) for name in tfdist.__all__]
    parallel = [tensor_parallel] if is_installed() else []  # a mesh needs Horovod
    for module in (callbacks, compression, memory, pipeline, staleness, testing, *parallel):
        names = getattr(module, "__all__", ["virtual_devices"])
        found += [getattr(module, name) for name in names]
    found += [cluster.Cluster, cluster.Cluster.from_environment, cluster.check_port_free]
    found += [cluster.check_parameter_server_cluster, cluster.choose_strategy, cluster.describe]
    found += [cluster.slurm_cluster, cluster.wait_for_peers, cluster.wait_for_servers]
    found += [cluster.serve, _local_cluster]
    classes = {compression.Compressor, compression.Noop}  # to be derived from; takes anything
    return [
        thing
        for thing in dict.fromkeys(found)
        if (inspect.isclass(thing) or inspect.isroutine(thing))
        and not isinstance(thing, types.GenericAlias)  # a class for `inspect` of Python 3.10
        and thing not in classes
        and not _is_plain_data(thing)
    ]


def _is_plain_data(thing):
    """What users get but do not make."""
    return thing in (memory.Estimate, compression.Step, compression.Result)


def _arguments():
    for thing in _callables():
        for parameter in inspect.signature(thing).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.name in FOR_ANYTHING.get(thing.__name__, ()):
                continue
            yield pytest.param(thing, parameter, id=f"{thing.__name__}-{parameter.name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("thing", "parameter"), list(_arguments()))
def test_what_cannot_be_used_is_refused_and_shown(thing, parameter):
    name = thing.__name__
    takes = TAKES_HERE.get((name, parameter.name), TAKES.get(parameter.name, set()))
    assert set(EVERYTHING) - takes
    for kind, value in EVERYTHING.items():
        if kind in takes:
            continue
        arguments = {**GIVEN.get(name, {}), parameter.name: value}
        try:
            thing(**arguments)
        except (TypeError, ValueError) as error:
            assert "Received" in str(error), (kind, error)
            assert len(str(error)) < 1500, kind
        except BaseException as error:
            pytest.fail(f"{kind}: {type(error).__name__}: {error}")
        else:
            pytest.fail(f"{kind} was taken")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tfdist.Options(accumulation_steps=2**31),
            "accumulation_steps` must be an integer from 1 to 2147483647. Received: .*=2147483648",
        ),
        (
            lambda: compression.TopK(start_step=2**63),
            "start_step` must be an integer from 0 to 2147483647. Received: start_step=9223372",
        ),
        (lambda: tfdist.Options(bucket_bytes=2**62 + 1), "from 1 to 4611686018427387904"),
        (lambda: tfdist.Options(seed=2**63), "from 0 to 9223372036854775807"),
        (lambda: compression.QSGD(levels=2**30 + 1), "from 1 to 1073741824"),
        (lambda: testing.virtual_devices(1025), "`count` must be an integer from 1 to 1024"),
        (lambda: staleness.DelayCompensated(1e39), "a number from 0 to 3.40282e.38"),
        (lambda: compression.Threshold(1e-40), "a number from 1.17549e-38 to 3.40282e.38"),
        (
            lambda: tfdist.MultiWorkerMirroredStrategy(heartbeat_timeout=1e308),
            r"`heartbeat_timeout` must be a number from 1 to 1e\+06. Received: .*=1e.308",
        ),
        (
            lambda: tfdist.MirroredStrategy(DEVICES[:2], cross_device_ops="nccl"),
            "must be a `tf.distribute.CrossDeviceOps, such as .*Received: cross_device_ops='nccl'",
        ),
        (lambda: tfdist.Strategy([]), r"Unknown strategy. Available: .*Received: name=\[\]"),
        (lambda: callbacks.StalenessMonitor(None), "ParameterServerStrategy.*strategy=None"),
        (lambda: tfdist.DistributedOptimizer({}), "its name or its config. Received: {}"),
        (
            lambda: tfdist.DistributedOptimizer("sgd", 2),
            r"too many positional arguments. Received: 2 arguments by position, and \[\]",
        ),
    ],
)
def test_the_message_says_what_is_allowed(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def _trained(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    before = model.get_weights()[0]
    x = np.random.default_rng(0).normal(size=(16, 64))
    model.fit(x, x[:, :8], batch_size=4, verbose=0)
    return before, model.get_weights()[0]


def test_the_largest_numbers_of_steps_mean_what_they_say():
    largest = 2**31 - 1
    before, after = _trained(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=largest))
    np.testing.assert_array_equal(before, after)
    late = [
        compression.TopK(0.01, min_bytes=0, start_step=largest),
        compression.DGC(0.01, 0.0, warmup_steps=largest, min_bytes=0, start_step=largest),
    ]
    _, plain = _trained(tfdist.MirroredStrategy(DEVICES[:2]))
    for compressor in late:
        _, after = _trained(tfdist.MirroredStrategy(DEVICES[:2], compression=compressor))
        np.testing.assert_allclose(plain, after, atol=1e-6)
