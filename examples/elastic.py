"""Trains a small model, and goes on from the last backup when it is started again.

With docs/kubernetes_slurm.md. The environment variable BACKUP names the folder for backups; all
machines of the job must see the same folder.
"""

from __future__ import annotations

import argparse
import os

import keras
import numpy as np

import tfdist


def build_model() -> keras.Model:
    """A compiled model of one hidden layer."""
    model = keras.Sequential(
        [keras.Input((32,)), keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


def main() -> None:
    """Trains, and says what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    x = generator.normal(size=(1024, 32)).astype("float32")
    y = x[:, :4].sum(axis=1, keepdims=True)
    strategy = tfdist.Strategy("auto")
    with strategy.scope():
        model = build_model()
    backup = keras.callbacks.BackupAndRestore(os.environ.get("BACKUP", "backup"))
    model.fit(x, y, batch_size=64, epochs=epochs, callbacks=[backup], verbose=2)
    loss = model.evaluate(x, y, batch_size=64, verbose=0)  # all ranks take part
    if strategy.is_chief:
        print(f"loss: {loss:.4f} after {epochs} epochs")


if __name__ == "__main__":
    main()
