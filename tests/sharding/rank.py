"""Run by each rank of the jobs of `test_jobs.py`: trains, saves and goes on from a file.

python tests/sharding/rank.py STRATEGY SHARDING FOLDER write|read
"""

import pathlib
import sys
import tracemalloc

import keras
import numpy as np
import tensorflow as tf

import tfdist

_WIDTH = 512
# Micro-batches of an update: after an epoch of four, one waits.
STEPS = 3
EPOCHS = 2


def _data():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(26, 5)), random.normal(size=(26, 3))
    arrays = x.astype("float32"), y.astype("float32")
    return tf.data.Dataset.from_tensor_slices(arrays).batch(8)


def model_in(strategy):
    """A compiled model; the same first weights each time."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(keras.optimizers.AdamW(1e-2, global_clipnorm=0.1, use_ema=True), "mse")
    return model


def train(model, first=0, last=EPOCHS):
    """Trains the epochs from `first` to `last`."""
    model.fit(_data(), initial_epoch=first, epochs=last, verbose=0)


def peak_of_saving(strategy, path):
    """The most that NumPy holds while a chain of equal layers is saved, and one layer, in bytes."""
    with strategy.scope():
        layers = [keras.layers.Dense(_WIDTH, use_bias=False) for _ in range(8)]
        model = keras.Sequential([keras.Input((_WIDTH,)), *layers])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    tracemalloc.start()
    model.save_weights(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, 4 * _WIDTH * _WIDTH


def main(name, sharding, folder, does):
    """Writes a file after some epochs, or the weights after some more from the file."""
    strategy = tfdist.Strategy(name, sharding=sharding, accumulation_steps=STEPS)
    if does == "write":
        model = model_in(strategy)
        train(model)
        model.save(folder / "saved.keras")
        plain = tfdist.Strategy(name, sharding=sharding)
        peak = peak_of_saving(plain, folder / "large.weights.h5")
        np.save(folder / f"peak-{strategy.processes.rank}.npy", peak)
    else:
        with strategy.scope():
            model = keras.models.load_model(folder / "saved.keras")
        train(model, EPOCHS, 2 * EPOCHS)
        np.savez(folder / f"weights-{strategy.processes.rank}.npz", *model.get_weights())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4])
