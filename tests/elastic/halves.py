"""Ranks of an elastic job that add up numbers of half precision, and nothing at all, in a step.

python -m tfdist run -n 3 --min 2 -m tests.elastic.halves FOLDER

Rank 0 writes the sum, and the shapes of the others.
"""

from __future__ import annotations

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.step.exchange import all_reduce

# Of 2048, 1 and 1 float16 makes 2048 if it adds a 1 to the 2048, but it holds 2050. Each of these
# numbers is at each rank, in each third of the vector, which a ring adds up in another order.
ROWS = np.tile([[2048, 1, 1], [1, 2048, 1], [1, 1, 2048]], 3).astype("float16")


class Adds(keras.Sequential):
    """Adds up the ranks' rows in each train step, and tensors without elements."""

    def __init__(self, strategy):
        super().__init__([keras.Input((1,)), keras.layers.Dense(1)])
        self.strategy = strategy
        self.total = self.add_weight(shape=(9,), initializer="zeros", trainable=False)

    def train_step(self, data):
        (total,) = all_reduce([tf.constant(ROWS[self.strategy.group.rank])])
        self.total.assign(tf.cast(total, tf.float32))
        sums = all_reduce([tf.zeros([0, 3]), tf.zeros([0], tf.float16)])
        self.shapes = [one.shape.as_list() for one in sums]
        return super().train_step(data)


def main() -> None:
    """Trains for one step."""
    strategy = tfdist.Strategy("auto")
    with strategy.scope():
        model = Adds(strategy)
        model.compile("sgd", "mse")
    model.fit(np.ones((3, 1)), np.ones((3, 1)), batch_size=3, verbose=0)
    model.shapes.append(strategy.processes.sum(tf.zeros([0])).shape.as_list())
    if strategy.group.rank == 0:
        total = model.total.numpy().tolist()
        found = {"ranks": strategy.group.size, "total": total, "shapes": model.shapes}
        pathlib.Path(sys.argv[1], "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
