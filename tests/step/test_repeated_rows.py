"""Sparse rows with equal numbers are added in one order, also by several threads."""

import os
import subprocess
import sys

import pytest

_TRAIN = """
import keras
import numpy as np
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(4)
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tfdist

random = np.random.default_rng(0)
words = (random.zipf(1.3, (256, 64)) % 2000).astype("int32")
strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    table = keras.layers.Embedding(2000, 32)
    model = keras.Sequential(
        [keras.Input((64,)), table, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.get(OPTIMIZER), "mse")
model.fit(words, random.normal(size=(256, 1)), batch_size=128, epochs=4, verbose=0)
one, other = strategy.experimental_local_results(table.embeddings.value)
np.testing.assert_array_equal(one.numpy(), other.numpy())
"""


@pytest.mark.parametrize(
    "optimizer",
    ["sgd", *(pytest.param(name, marks=pytest.mark.full) for name in ("adagrad", "rmsprop"))],
)
def test_replicas_have_the_same_bits_with_several_threads(optimizer):
    text = f"OPTIMIZER = {optimizer!r}\n{_TRAIN}"
    ran = subprocess.run(
        [sys.executable, "-c", text], env=dict(os.environ), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
