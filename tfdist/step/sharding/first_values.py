"""The first values of weights in parts: those of one device with the same seed.

Keras' random initializers and constants compute the parts of this process' replicas alone. Each
element depends on its place and on a seed, so the processes agree on the seed, and need not compare
values. Other initializers compute the whole weight in each process, which keeps its parts of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tfdist import compat
from tfdist.checksum import checksum, digest
from tfdist.engines.processes import Processes
from tfdist.step.sharding.parts import Parts

_HOST = "CPU:0"


def by_part(
    processes: Processes, initializer: Callable, parts: Parts
) -> Callable[[int], tf.Tensor]:
    """What gives the first value of the part of a replica; outside of functions.

    All processes call this for the same weight. If they differ in the seed, or in the initializer,
    the weight begins with the value of the first process.

    Args:
        processes: the processes.
        initializer: of the weight, as Keras calls it.
        parts: how the weight is divided.
    """
    value = compat.InitialValue(initializer, tf.TensorShape(parts.shape), parts.dtype, _HOST)
    if _agree(processes, value):
        return functools.partial(_computed, value, parts)
    # A seed that was drawn already must not be drawn again.
    whole = value.elements(0, value.shape) if value.is_divisible else value()
    whole = tf.cast(tf.convert_to_tensor(whole), parts.dtype)
    return functools.partial(parts.kept_part, _of_first(processes, whole))


def _agree(processes: Processes, value: compat.InitialValue) -> bool:
    """Whether each process can compute its parts, which it then does with the first one's seed."""
    if processes.is_alone:
        return value.is_divisible
    rows = processes.all_gather([digest(value.settings.encode()), *value.seed])
    if not value.is_divisible or len(set(rows[:, 0].tolist())) > 1:
        return False
    value.seed = rows[0, 1:].tolist()
    return True


def _computed(value: compat.InitialValue, parts: Parts, replica: int) -> tf.Tensor:
    begin, end = parts.place(replica)
    return parts.filled(value.elements(begin, tf.TensorShape([end - begin])))


def _of_first(processes: Processes, value: tf.Tensor) -> tf.Tensor:
    """The first process' value, where the processes' values differ."""
    if processes.is_alone:
        return value
    checksums = processes.all_gather([checksum(value)])[:, 0]
    if len(set(checksums.tolist())) == 1:
        return value
    return tf.constant(processes.broadcast([value.numpy()], 0)[0])
