"""Replays a record of job.py with other options, models, weights and data; prints the errors."""

import json
import sys

import keras
import numpy as np

from tests.replay.job import build, data, make_strategy


def error_of(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def fit(strategy, *, width=32, seed=7, rows=slice(None), epochs=2):
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x, y = data()
    x, y = x[rows], y[rows]
    with strategy.scope():
        model = build(width)
        model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    model.fit(x, y, batch_size=8, epochs=epochs, callbacks=strategy.callbacks(), verbose=0)


def main(options):
    def strategy(staleness, **others):
        return make_strategy({**options, "record": "unused", "staleness": staleness, **others})

    errors = {
        "policy": error_of(lambda: strategy("Bounded(2)")),
        "accumulation": error_of(lambda: strategy("Bounded(1)", accumulation_steps=1)),
    }
    good = strategy("Bounded(1)")
    errors |= {
        "second strategy": error_of(lambda: strategy("Bounded(1)")),
        "variables": error_of(lambda: fit(good, width=16)),
        "weights": error_of(lambda: fit(good, seed=8)),
        "data": error_of(lambda: fit(good, rows=np.arange(248)[::-1])),
        "length": error_of(lambda: fit(good, rows=slice(128))),
    }
    print(json.dumps(errors))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
