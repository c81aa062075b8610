"""What a record keeps of batches and weights, to compare a replay with the recorded run."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.replay.events import Weights
from tfdist.replay.record_checks import SAMPLE
from tfdist.structures import Structure


def checksum_of_batch(data: Structure) -> str:
    """A checksum of the contents of a batch, computed where the batch is.

    Each tensor is serialized and hashed by FarmHash, whose values are the same on all machines. The
    checksum is the CRC-32 of these hashes.

    Returns:
        8 hexadecimal digits.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(leaf)]
    if not leaves:
        return f"{0:08x}"
    device = tf.DeviceSpec.from_string(leaves[0].device)
    with tf.device(device.replace(device_type="CPU", device_index=0)):
        return f"{zlib.crc32(_hashes(leaves).numpy().tobytes()):08x}"


# One call: on another machine, each operation would be a message of its own.
@tf.function(reduce_retracing=True, autograph=False)
def _hashes(tensors: list[tf.Tensor]) -> tf.Tensor:
    serialized = [tf.io.serialize_tensor(tensor) for tensor in tensors]
    return tf.strings.to_hash_bucket_fast(tf.stack(serialized), 2**62)


def weights_of(variables: Iterable[keras.Variable]) -> Weights:
    """What a record keeps of the values of variables."""
    checksum, sample = 0, []
    for variable in variables:
        value = np.asarray(tf.convert_to_tensor(variable.value))
        checksum = zlib.crc32(value.tobytes(), checksum)
        flat = value.reshape(-1)
        places = np.unique(np.linspace(0, max(flat.size - 1, 0), SAMPLE).astype(int))
        # As text: short, and read back as the same number. Adding 0 makes numbers of truth values.
        sample.append([float(str(number + 0)) for number in flat[places[: flat.size]]])
    return Weights(checksum, sample)


def difference(one: Weights, other: Weights) -> float:
    """The largest difference in the samples, relative to numbers greater than 1; 0.0 for none.

    NaN equals NaN, and is infinitely far from everything else.
    """
    largest = 0.0
    for mine, others in zip(one.sample, other.sample):
        largest = max(largest, _difference(mine, others))
    return largest


def _difference(mine: Sequence[float], others: Sequence[float]) -> float:
    a, b = np.asarray(mine), np.asarray(others)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1.0)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max(initial=0.0))
