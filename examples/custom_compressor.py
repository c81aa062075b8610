"""A compressor of one's own, two elements to a byte, in a `fit` on two virtual devices.

Prints the compression ratio and the loss of the first and the last epoch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import compression
from tfdist.compression import bits
from tfdist.compression.numbers import largest, quotient


@compression.register
@dataclasses.dataclass(frozen=True)
class Int4(compression.Compressor):
    """Multiples of 1/levels of the largest magnitude, packed into bytes.

    Args:
        levels: number of multiples on each side of zero. 7 makes 15 digits, two of them a byte.
    """

    name: ClassVar[str] = "int4"
    aggregation: ClassVar = "gather"  # each replica has a scale of its own

    levels: int = 7
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def encode(
        self, gradient: tf.Tensor, state: compression.State, step: compression.Step
    ) -> tuple[compression.Payload, compression.State]:
        """The digits' bytes, and the largest magnitude: NaN if an element is not finite."""
        flat = tf.reshape(gradient, [-1])
        top = largest(flat)
        top = tf.where(tf.math.is_finite(top), top, float("nan"))
        multiples = tf.round(quotient(flat, top) * self.levels)
        # A digit has to be a number, also where the scale is none.
        digits = tf.where(tf.math.is_finite(multiples), multiples, 0.0) + self.levels
        return (bits.pack(digits, self._base), top[None]), state

    def decode(self, payload: compression.Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The multiples times the scale of the replica that sent them."""
        packed, top = payload
        values = [digit - self.levels for digit in range(self._base)]
        multiples = bits.unpack(packed, values, math.prod(spec.shape))
        return tf.cast(tf.reshape(multiples * (top / self.levels), spec.shape), spec.dtype)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """The digits' bytes, and 4 for the scale."""
        return bits.packed_size(math.prod(spec.shape), self._base) + 4

    @property
    def _base(self) -> int:
        return 2 * self.levels + 1


def main() -> None:
    """Trains a small classifier with it."""
    devices = tfdist.testing.virtual_devices(2)
    keras.utils.set_random_seed(0)
    strategy = tfdist.MirroredStrategy(devices, compression="int4")
    with strategy.scope():
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(5)]
        model = keras.Sequential([keras.Input((20,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)

    random = np.random.default_rng(0)
    x = random.normal(size=(2048, 20)).astype("float32")
    y = (x @ random.normal(size=(20, 5))).argmax(axis=1)
    monitor = tfdist.callbacks.CompressionMonitor()
    history = model.fit(x, y, batch_size=64, epochs=5, verbose=0, callbacks=[monitor]).history
    print(f"ratio: {history['compression_ratio'][-1]:.2f}")
    print(f"loss: {history['loss'][0]:.3f} to {history['loss'][-1]:.3f}")


if __name__ == "__main__":
    main()
