"""One rank that trains with a Timeline.

python -m tfdist run -n 2 -m tests.callbacks.timeline_rank STRATEGY FILE
"""

import sys

import keras
import numpy as np

import tfdist


def main() -> None:
    """Trains some steps; rank 0 writes the file."""
    name, path = sys.argv[1:]
    strategy = tfdist.Strategy(name)
    with strategy.scope():
        layers = [keras.layers.Dense(2048), keras.layers.Dense(512), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((64,)), *layers])
        model.compile("sgd", "mse")
    x = np.ones((128, 64), "float32")
    timeline = tfdist.callbacks.Timeline(path, steps=(3, 7))
    model.fit(x, x[:, :1], batch_size=16, shuffle=False, verbose=0, callbacks=[timeline])


if __name__ == "__main__":
    main()
