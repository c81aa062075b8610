"""Scenarios of compressed pushes; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

import re
import subprocess

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.log_messages import log_messages
from tfdist import compression
from tfdist.parameter_server.worker.compressed_push import CompressedPush

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(48, 20)).astype("float32")
_Y = (2.0 * _X[:, :3]).astype("float32")
# By name, options with a unit per variable: these do not depend on where variables are.
SYNCHRONOUS: dict[str, dict] = {
    "topk from update 3 on": {"compression": compression.TopK(0.1, min_bytes=0, start_step=3)},
    "randomk, another seed": {"compression": compression.RandomK(0.2, min_bytes=0), "seed": 5},
    "dgc, warm-up": {"compression": compression.DGC(0.1, min_bytes=0, warmup_steps=4)},
    "onebit by pattern": {"compression": {"*/kernel": compression.OneBit(min_bytes=0)}},
    "topk of everything, accumulation": {
        "compression": compression.TopK(1.0, min_bytes=0),
        "accumulation_steps": 2,
    },
}
for _options in SYNCHRONOUS.values():
    _options["bucket_bytes"] = 1
# By the path of the whole variable.
OF_PARTS = {"*/kernel": compression.RandomK(1.0, min_bytes=0)}
COUNTED = [compression.TopK(0.01), compression.PowerSGD(4)]
MORE_COUNTED = [
    compression.RandomK(0.01),
    compression.DGC(0.01),
    compression.FP16(),
    compression.Noop(not_training=True),
]


def trained(strategy) -> list[np.ndarray]:
    """The weights of a small model after a training."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(40, "relu"), keras.layers.Dense(3)]
        )
        model.compile(keras.optimizers.SGD(0.02), "mse")
    model.fit(_X, _Y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def push_synchronous(resolver, folder):
    """Weights by the name of the options."""
    policy = tfdist.staleness.Synchronous()
    return {
        name: trained(tfdist.ParameterServerStrategy(resolver, staleness=policy, **options))
        for name, options in SYNCHRONOUS.items()
    }


def push_partitioned(resolver, folder):
    """The weights after training with variables in two parts, on a server each."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    policy = tfdist.staleness.Synchronous()
    strategy = tfdist.ParameterServerStrategy(
        resolver, partitioner, staleness=policy, compression=OF_PARTS
    )
    return trained(strategy)


def pull_partitioned(resolver, folder):
    """The weights after training with variables in two parts, without and with compressed pulls.

    There is one step at a time, so the batches come in one order, to either worker.
    """
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    lossless = compression.TopK(1.0, min_bytes=0)
    return [
        trained(
            tfdist.ParameterServerStrategy(
                resolver, partitioner, input="dynamic", max_pending=1, pull_compression=pull
            )
        )
        for pull in (None, lossless)
    ]


def _sent(addresses) -> int:
    """The bytes that servers at these addresses have sent over their connections."""
    total = 0
    for address in addresses:
        command = ["ss", "-tinH", f"sport = :{address.split(':')[1]}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        total += sum(map(int, re.findall(r"bytes_sent:(\d+)", text)))
    return total


def push_bytes(resolver, folder):
    """What workers send in a step, and what compressors state."""
    return _counted(resolver, COUNTED)


def push_more_bytes(resolver, folder):
    """The same with other compressors."""
    return _counted(resolver, MORE_COUNTED)


def _counted(resolver, compressors):
    workers = resolver.cluster_spec().as_dict()["worker"]
    x = np.zeros((64, 500), "float32")
    found = {}
    for compressor in compressors:
        strategy = tfdist.ParameterServerStrategy(resolver, compression=compressor)
        with strategy.scope():
            layers = [keras.layers.Dense(units, use_bias=False) for units in (400, 500)]
            model = keras.Sequential([keras.Input((500,)), *layers])
            model.compile(keras.optimizers.SGD(0.0), "mse")
        model.fit(x, x, batch_size=8, verbose=0)
        before = _sent(workers)
        model.fit(x, x, batch_size=8, verbose=0)
        shapes = [variable.shape for variable in model.trainable_variables]
        if not compressor.per_tensor:
            shapes = [[np.prod(shape)] for shape in shapes]
        stated = sum(compressor.wire_bytes(tf.TensorSpec(shape, tf.float32)) for shape in shapes)
        found[compressor.name] = (_sent(workers) - before) / strategy.report.updates, stated
    return found


def push_kept(resolver, folder):
    """What arrives of a gradient [1, 2, 3, 4], of which one element is sent, in several cases."""
    codec = compression.TopK(0.25, min_bytes=0)
    strategy = tfdist.ParameterServerStrategy(resolver, compression=codec)
    with strategy.scope():
        variable = keras.Variable(np.zeros(4, "float32"), name="v")
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
        optimizer.build([variable])
    push = CompressedPush(strategy.options, [optimizer])
    push.begin_run(0)
    gradient = {"0": {"0": tf.constant([1.0, 2.0, 3.0, 4.0])}}

    def send(worker, sender, **options):
        with tf.device(f"/job:worker/replica:0/task:{worker}/device:CPU:0"):
            arrived, states, anew = push(gradient, worker, sender, version=0, **options)
        begun_anew.append(anew)
        assert "/job:ps" in arrived["0"]["0"].device
        return arrived["0"]["0"].numpy().tolist(), states

    found: dict = {}
    begun_anew: list[bool] = []
    found["first"], states = send(0, 0)
    found["not used, and repeated"], states = send(0, 0)
    push.keep(0, 0, states)
    found["used"], states = send(0, 0)
    found["of another sender"], _ = send(0, 1)
    found["on another worker"], states = send(1, 0)
    push.keep(1, 0, states)
    with log_messages() as found["log"]:
        push.forget(0)
        found["on that worker, which is not lost"], _ = send(1, 0)
        push.forget(1)
    begun_anew.clear()
    found["lost"], states = send(0, 0)
    found["lost, and repeated"], states = send(0, 0)
    push.keep(0, 0, states)
    found["after the loss"], _ = send(0, 0)
    found["taken as lost"], _ = send(0, 0, anew=True)
    found["begun anew"] = begun_anew
    return found


def push_overflow(resolver, folder):
    """The loss scale and the weights after a training whose first steps overflow."""
    keras.config.set_dtype_policy("mixed_float16")
    codec = compression.TopK(0.2, min_bytes=0)
    strategy = tfdist.ParameterServerStrategy(resolver, compression=codec)
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        inner = keras.optimizers.SGD(0.02)
        model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**24), "mse")
    model.fit(_X, _Y, batch_size=4, epochs=2, verbose=0)
    keras.config.set_dtype_policy("float32")
    scale = float(model.optimizer.unwrap().dynamic_scale)
    return scale, model.get_weights(), int(model.optimizer.iterations.numpy())
