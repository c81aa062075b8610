"""Replicas that exchange payloads with a compressor, without a strategy between them."""

from __future__ import annotations

import math

import tensorflow as tf

from tfdist import compression
from tfdist.compression import registry


def own_names() -> set[str]:
    """The names of tfdist's compressors, without those that other tests have registered."""
    return {
        name
        for name in compression.available()
        if registry._CLASSES[name].__module__.startswith("tfdist.")
    }


# Every registered compressor, as it is by default or smaller, and with other options.
VARIANTS = [
    *(compression.get(name) for name in compression.available() if name != "noop"),
    compression.Noop(not_training=True),
    compression.Int8(scale="tensor", rounding="stochastic"),
    compression.QSGD(levels=1),
    compression.QSGD(levels=127, norm="max"),
    compression.QSGD(levels=1000, group=7),
    compression.QSGD(levels=2**30, norm="max"),
    compression.TernGrad(clip=None),
    compression.SignSGD(scale="bucket"),
    compression.SignSGD(scale="column"),
    compression.OneBit(scale="tensor"),
    compression.OneBit(scale="bucket"),
    compression.TopK(0.3),
    compression.TopK(1.0),
    compression.RandomK(0.3, error_feedback=False),
    compression.RandomK(1.0),
    compression.Threshold(1e-30, max_ratio=1.0),
    compression.DGC(0.2, momentum=0.5),
    compression.DGC(1.0, momentum=0.0),
    compression.PowerSGD(rank=1),
    compression.PowerSGD(rank=100),
]

# Those that send less than there is.
COMPRESSING = [
    compression.get({"name": name, "min_bytes": 0})
    for name in compression.available()
    if name not in ("none", "noop", "threshold", "dgc")
]
COMPRESSING += [
    compression.Noop(not_training=True, min_bytes=0),
    compression.Threshold(1.0, max_ratio=0.05, min_bytes=0),
    compression.DGC(0.01, min_bytes=0),
]


def name_of(compressor):
    """What a test with `compressor` is called."""
    config = {k: v for k, v in compressor.get_config().items() if k not in ("name", *_COMMON)}
    return " ".join([compressor.name, *(f"{k}={v}" for k, v in config.items())])


_COMMON = ("min_bytes", "start_step", "error_feedback")


def shaped(compressor, values):
    """`values` as the compressor sees them: as they are, or as one vector."""
    tensor = tf.convert_to_tensor(values, tf.float32)
    return tensor if compressor.per_tensor else tf.reshape(tensor, [-1])


def spec_of(tensor):
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def exchange(compressor, gradients, states=None, number=0):
    """One step of as many replicas as there are gradients.

    Returns:
        The replicas' results, and the bytes of the payloads of the first one.
    """
    if states is None:
        states = [compressor.init(spec_of(gradient)) for gradient in gradients]
    seed = tf.constant([7, number])
    running, payloads, results = [], [], [None] * len(gradients)
    for rank, (gradient, state) in enumerate(zip(gradients, states)):
        step = compression.Step(seed, seed + tf.constant([rank + 1, 0]))
        running.append(compressor.exchange(gradient, state, step))
        payloads.append(next(running[-1]))
    sent = 0
    while payloads[0] is not None:
        sent += sum(math.prod(part.shape) * part.dtype.size for part in payloads[0])
        columns = list(zip(*payloads))
        if compressor.aggregation == "sum":
            wide = [[tf.cast(p, tf.float32) for p in column] for column in columns]
            received = tuple(tf.add_n(column) for column in wide)
        else:
            received = tuple(tf.stack(column) for column in columns)
        for rank, generator in enumerate(running):
            try:
                payloads[rank] = generator.send(received)
            except StopIteration as end:
                payloads[rank], results[rank] = None, end.value
    return results, sent


def roundtrip(compressor, gradient, number=0):
    """What one replica alone gets back, and the bytes that it would have sent."""
    (result,), sent = exchange(compressor, [gradient], number=number)
    return result, sent
