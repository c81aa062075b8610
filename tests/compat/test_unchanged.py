"""Keras and TensorFlow outside of tfdist's strategies compute what they do without tfdist."""

import json
import os
import subprocess
import sys

import pytest

TRAIN = """
import json, sys
import keras, numpy as np, tensorflow as tf

if sys.argv[1] == "tfdist":
    import tfdist
    from tfdist import compat
    assert tfdist.MirroredStrategy and tfdist.ParameterServerStrategy
    compat.install_collectives()

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
tokens = rng.integers(0, 6, (10, 5))
y = rng.normal(size=(10, 1)).astype("float32")
found = {}


def model():
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(6, 4, mask_zero=True)(inputs)
    x = keras.layers.LSTM(4)(x)
    x = keras.layers.Reshape((4, 1))(x)
    x = keras.layers.MaxPooling1D(2)(keras.layers.Conv1D(3, 2, padding="same")(x))
    x = keras.layers.Dropout(0.3)(keras.layers.Flatten()(x))
    out = keras.layers.Dense(1, kernel_regularizer="l2")(x)
    return keras.Model(inputs, out)


for name in ("default", "mirrored"):
    devices = ["CPU:0"]
    strategy = tf.distribute.MirroredStrategy(devices) if name == "mirrored" else None
    with strategy.scope() if strategy else tf.device("CPU:0"):
        net = model()
        net.compile(
            keras.optimizers.Adam(0.01, use_ema=True, weight_decay=0.01, clipnorm=1.0),
            loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
            metrics=["mae"],
        )
    weights = rng.uniform(size=10).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((tokens, y, weights)).batch(4)
    history = net.fit(data.filter(lambda *batch: True), epochs=2, verbose=0).history
    history |= {"evaluated": net.evaluate(tokens, y, verbose=0)}
    history |= {"predicted": float(net.predict(tokens, verbose=0).sum())}
    found[name] = {"history": history, "weights": [w.numpy().tolist() for w in net.weights]}

net = model()
optimizer = keras.optimizers.SGD(0.1)
mean = keras.metrics.Mean()


@tf.function
def step(tokens, y):
    with tf.GradientTape() as tape:
        squares = tf.square(y - net(tokens, training=True))[:, 0]
        loss = tf.nn.compute_average_loss(squares, global_batch_size=8)
        loss += tf.nn.scale_regularization_loss(tf.add_n(net.losses))
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
    mean.update_state(loss)
    with tf.GradientTape() as tape:
        tape.watch(y)
        cubes = y**3
    return loss, tape.jacobian(cubes, y)


with tf.GradientTape() as tape:
    squares = keras.losses.mean_squared_error(y, net(tokens))
gradients = tape.gradient(squares, net.trainable_variables)
found["eager"] = [float(tf.reduce_sum(tf.convert_to_tensor(g))) for g in gradients]
loss, jacobian = step(tf.constant(tokens), tf.constant(y))
found["loop"] = [float(loss), float(mean.result()), float(tf.reduce_sum(jacobian))]
found["random"] = [float(keras.random.uniform(())) for _ in range(3)]
found["numbers"] = [float(keras.ops.max(y)), float(keras.ops.min(y))]
empty = keras.ops.zeros((0, 2))
for name, compute in (
    ("add", lambda: keras.ops.add(empty, empty)),
    ("max", lambda: keras.ops.max(empty)),
):
    try:
        found[name] = list(compute().shape)
    except Exception as error:
        found[name] = type(error).__name__
print("found", json.dumps(found))
"""


def trained(*arguments):
    finished = subprocess.run(
        [sys.executable, "-c", TRAIN, *arguments],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stdout.splitlines() if line.startswith("found ")]
    return json.loads(line.removeprefix("found "))


@pytest.mark.full
def test_importing_tfdist_changes_no_number():
    assert trained("tfdist") == trained("plain")
