"""What `test_launchers.py` starts in every way: a script that knows nothing of processes."""

import pathlib
import sys

import keras
import numpy as np

import tfdist

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x = random.normal(size=(67, 8)).astype("float32")
y = (x @ random.normal(size=(8, 3))).argmax(axis=1)

strategy = tfdist.Strategy("auto")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), shuffle=False).history

print("trained under", type(strategy).__name__)
np.savez(
    pathlib.Path(sys.argv[1]) / f"{strategy.processes.rank}.npz",
    predictions=model.predict(x, batch_size=16, verbose=0),
    **{f"weights {i}": weights for i, weights in enumerate(model.get_weights())},
    **{f"history {name}": values for name, values in history.items()},
)
