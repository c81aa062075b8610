"""Run by each rank of the jobs of `test_job.py`: trains in parts, and compares with one device."""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.tensor_parallel import refusals
from tests.tensor_parallel.models import (
    TEXT,
    Subclassed,
    X,
    Y,
    difference,
    masked,
    mlp,
    mlp_alike,
    scope,
    transformer,
)
from tfdist import tensor_parallel as parallel
from tfdist.checksum import checksum

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.002, epsilon=1e-3, weight_decay=0.01),
    "clipped": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01),
    "averaged": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
}
# What the default suite trains with one model group, and with several.
USUAL = {1: (0, 1, 2, 7), 2: (4,)}
# With many ranks on few cores eager steps take minutes.
NOT_EAGER = (2, 3, 4, 6, 7)
CASES = [
    ("mlp", mlp, X, "accumulated", {"run_eagerly": True}),
    ("masked", masked, TEXT, "sgd", {}),
    ("transformer", transformer, TEXT, "clipped", {}),
    ("mlp", mlp, X, "sgd", {}),
    ("mlp", mlp, X, "averaged", {}),
    ("transformer", transformer, TEXT, "sgd", {}),
    ("transformer", transformer, TEXT, "adam", {}),
    ("subclassed", Subclassed, X, "sgd", {}),
]


def meshes(shape, backend):
    """A mesh, and one whose strategy accumulates gradients; the same without a strategy."""
    mesh = parallel.Mesh(shape, backend)
    if mesh.shape["data"] == 1:
        return mesh, mesh
    accumulating = parallel.Mesh(shape, backend)
    accumulating.strategy(accumulation_steps=2)
    return mesh, accumulating


def chosen(name, mesh):
    """An optimizer; without accumulation of its own where the strategy accumulates."""
    if mesh is not None and mesh.shape["data"] > 1 and name == "accumulated":
        return keras.optimizers.SGD(0.05)
    return OPTIMIZERS[name]()


def train(make, mesh, x, optimizer, options, callbacks=()):
    """The model and its logs; the same random numbers each time."""
    keras.utils.set_random_seed(3)
    with scope(mesh):
        model = make(mesh)
        model.compile(chosen(optimizer, mesh), "mse", metrics=["mae"], **options)
    fit = model.fit(x, Y, batch_size=8, epochs=2, verbose=0, callbacks=[*callbacks])
    predicted = model.predict(x, batch_size=8, verbose=0)
    logs = [*fit.history["loss"], *fit.history["mae"], *model.evaluate(x, Y, verbose=0)]
    return model, np.concatenate([logs, predicted.ravel()])


class Saving(keras.callbacks.Callback):
    """Saves whole weights after each epoch, in all ranks."""

    def __init__(self, mesh, path):
        super().__init__()
        self._mesh, self._path = mesh, path

    def on_epoch_end(self, epoch, logs=None):
        self._mesh.save_weights(self.model, self._path)


def equality(mesh, accumulating, folder, cases):
    """By case: how far weights and logs are from one device, and how large the parts are."""
    found = {}
    for name, make, x, optimizer, options in cases:
        here = accumulating if optimizer == "accumulated" else mesh
        if make is mlp and mesh.shape["data"] > 1:
            make = mlp_alike
        path = folder / f"{name}-{optimizer}.weights.h5"
        model, logs = train(make, here, x, optimizer, options, [Saving(here, path)])
        here.processes.sum(tf.constant(0.0))  # the file is there
        plain, expected = train(make, None, x, optimizer, options)
        trained = plain.get_weights()
        plain.load_weights(path)
        with scope(here):
            loaded = make(here)
            if not loaded.built:
                loaded(x[:1])
        loaded.load_weights(path)
        found[f"{name}, {optimizer}"] = {
            "weights": difference(plain.get_weights(), trained),
            "logs": difference([logs], [expected]),
            "loaded again": difference(loaded.get_weights(), model.get_weights()),
            "part": model.count_params() / plain.count_params(),
            "bits": [[hasattr(v, "axis_of_parts"), checksum(v.value)] for v in model.variables],
        }
    return found


class Decides(keras.callbacks.Callback):
    """Sets the learning rate in one rank, then ends training in another one."""

    def __init__(self, sets, ends):
        super().__init__()
        self._sets, self._ends = sets, ends

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and self._sets:
            self.model.optimizer.learning_rate = 0.03
        if epoch == 1 and self._ends:
            self.model.stop_training = True


def decisions(mesh):
    """With several groups: how far weights are from one device where one rank alone decides."""
    found = []
    if mesh.shape["data"] == 1:
        return found
    for here in (mesh, None):
        keras.utils.set_random_seed(3)
        with scope(here):
            model = mlp_alike(here)
            model.compile(keras.optimizers.SGD(0.05), "mse")
        last = mesh.processes.size - 1
        decides = Decides(here is None or mesh.rank == 0, here is None or mesh.rank == last)
        fit = model.fit(X, Y, batch_size=8, epochs=4, verbose=0, callbacks=[decides])
        found.append([len(fit.history["loss"]), model.layers[-1].get_weights()])
    (epochs, own), (expected, plain) = found
    return [epochs == expected == 2, difference(own, plain)]


def loop(make, mesh, x):
    """A model after a loop of one's own, in a function: there `apply` sees the optimizer first."""
    keras.utils.set_random_seed(3)
    model = make(mesh)
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            if x.dtype.is_floating:  # a gradient penalty
                loss += 10 * tf.reduce_sum(inner.gradient(loss, x) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for _ in range(3):
        step(tf.constant(x), tf.constant(Y))
    return model


def loop_of_groups(make, mesh, x):
    """The same of several model groups, with a mean loss of Keras."""
    keras.utils.set_random_seed(3)
    with scope(mesh):
        model = make(mesh)
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.05))
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.MeanSquaredError()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    strategy = tf.distribute.get_strategy() if mesh is None else mesh.strategy()
    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(8)
    for x, y in strategy.experimental_distribute_dataset(data):
        run(x, y)
    return model


def loops(mesh, folder):
    """How far weights are from one device after loops of one's own."""
    groups = mesh.shape["data"] > 1
    train_in_loop = loop_of_groups if groups else loop
    found = []
    for make, x in ((mlp_alike, X),) if groups else ((transformer, TEXT), (mlp, X)):
        path = folder / f"{make.__name__}-loop.weights.h5"
        mesh.save_weights(train_in_loop(make, mesh, x), path)
        mesh.processes.sum(tf.constant(0.0))  # the file is there
        plain = train_in_loop(make, None, x)
        trained = plain.get_weights()
        plain.load_weights(path)
        found.append(difference(plain.get_weights(), trained))
    return max(found)


def main():
    folder, cases = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    shape, backend = json.loads(sys.argv[3]), sys.argv[4]
    keras.utils.set_random_seed(3)
    mesh, accumulating = meshes(shape, backend)
    found = {"shape": mesh.shape, "model rank": mesh.model_rank}
    found["equality"] = equality(mesh, accumulating, folder, [CASES[n] for n in cases])
    found["loops"] = loops(mesh, folder)
    found["decisions"] = decisions(mesh)
    # TensorFlow's collective operations cannot go on after a step that has failed.
    found["refusals"] = refusals.found(mesh, folder, goes_on=backend == "horovod")
    (folder / f"{mesh.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
