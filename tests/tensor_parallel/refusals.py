"""What ranks with layers in parts refuse, or notice, before weights change."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.tensor_parallel.models import TEXT, X, Y, difference, masked, mlp, scope, transformer
from tfdist import tensor_parallel as parallel


def _compiled(model, optimizer="sgd", **options):
    model.compile(optimizer, "mse", **options)
    return model


def _in_parts(mesh):
    part = parallel.Dense(4, mesh, "rows", use_bias=False)
    return keras.Sequential([keras.Input((8,)), part])


@contextlib.contextmanager
def _expecting(kind, text, errors, name):
    try:
        yield
    except kind as error:
        errors[name] = "" if text in str(error) else f"{type(error).__name__}: {error}"
    else:
        errors[name] = "nothing was raised"


def found(mesh, folder, goes_on):
    """By case: "" if it was refused and the weights are unchanged.

    Args:
        mesh: the ranks.
        folder: for files.
        goes_on: whether ranks can go on after a step that has failed.
    """
    errors = {}
    groups = mesh.shape["data"] > 1
    model = _made(mesh, mlp)
    before = model.get_weights()
    lamb, clipping = keras.optimizers.Lamb, lambda: keras.optimizers.SGD(global_clipnorm=1.0)
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "rank.weights.h5", save_weights_only=True)
    length = X[mesh.model_rank :], Y[mesh.model_rank :]

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())

    for name, refused, text in (
        ("clipping", lambda: _made(mesh, mlp, clipping).fit(X, Y, verbose=0), "clip"),
        ("lamb", lambda: _made(mesh, mlp, lamb).fit(X, Y, verbose=0), "each element"),
        ("scale", lambda: _made(mesh, mlp, scaled).fit(X, Y, verbose=0), "plain optimizer"),
        ("all in parts", lambda: _made(mesh, _in_parts).fit(X, Y, verbose=0), "has none"),
        ("run", lambda: _other_run(model, mesh), "begins `evaluate`"),
        ("length", lambda: model.evaluate(*length, verbose=0), "samples"),
        ("rate", lambda: _made(mesh, mlp, _rate_of(mesh)).fit(X, Y, verbose=0), "learning rate"),
        ("ending", lambda: mesh.save_weights(model, folder / _ending(mesh)), "must end with"),
        ("export", lambda: model.export(folder / "exported"), "mesh.save_weights"),
        ("saving", lambda: model.save_weights(folder / "other.weights.h5"), "mesh.save_weights"),
        ("model file", lambda: model.save(folder / "other.keras"), "mesh.save_weights"),
        ("checkpoint", lambda: model.fit(X, Y, callbacks=[checkpoint], verbose=0), "do not save"),
        ("checkpoint of TensorFlow", lambda: _checkpoint(model, folder), "mesh.save_weights"),
        ("units", lambda: parallel.Dense(7, mesh), "multiple of their number"),
        ("shape", lambda: parallel.Mesh({"data": 2, "model": 5}), "as many ranks as the job"),
        ("axis", lambda: parallel.Mesh({"batch": 2}), "along"),
        ("backend", lambda: parallel.Mesh(backend="mirrored"), "backend"),
        ("strategy", lambda: _in_scope(mesh), "mesh.strategy()"),
        ("option", lambda: mesh.strategy(compression="topk"), "compression"),
        ("seed", lambda: _other_seed(mesh), "random seed"),
        *(_of_groups(mesh, model) if groups else ()),
        *(_of_horovod(mesh) if goes_on else _of_workers()),
    ):
        with _expecting(ValueError, text, errors, name):
            refused()
    with _expecting(Exception, "", errors, "no folder"):
        mesh.save_weights(model, folder / "none" / f"{mesh.rank}" / "a.weights.h5")
    if goes_on:
        _fail(mesh, model, errors)
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "targets"):
        model.fit(X, Y + mesh.model_rank, batch_size=8, verbose=0)
    changed = [
        weight.path
        for weight, first in zip(model.weights, before, strict=True)
        if weight.trainable and not np.array_equal(first, weight.numpy())
    ]
    errors["weights"] = f"changed: {changed}" if changed else ""
    return errors


def _fail(mesh, model, errors):
    """Steps that fail in all ranks."""
    own = X + mesh.model_rank
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "data"):
        model.fit(own, Y, batch_size=8, verbose=0)
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "ids"):
        _made(mesh, transformer).predict(_swapped(mesh), batch_size=25, verbose=0)
    frozen = _made(mesh, _frozen)
    head = frozen.layers[-1].get_weights()
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "frozen"):
        frozen.fit(TEXT, Y + mesh.model_rank, batch_size=8, verbose=0)
    errors["head"] = "changed" if difference(head, frozen.layers[-1].get_weights()) else ""
    setting = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: setattr(model.optimizer, "learning_rate", 0.01 + mesh.model_rank)
    )
    if mesh.shape["data"] == 1:  # several groups agree
        with _expecting(tf.errors.InvalidArgumentError, "other learning rates", errors, "set rate"):
            model.fit(X, Y, batch_size=8, verbose=0, callbacks=[setting])
        model.optimizer.learning_rate = 0.01
    mixed = X[::-1] if mesh.model_rank else X
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "order"):
        model.fit(mixed, Y, batch_size=25, verbose=0)
    with _expecting(tf.errors.InvalidArgumentError, "no such row", errors, "rows"):
        _made(mesh, transformer).predict(TEXT + 5, verbose=0)


def _of_groups(mesh, model):
    """What several model groups refuse besides."""
    plain = keras.optimizers.SGD()
    return (
        ("no scope", lambda: _compiled(mlp(mesh)), "scope of `mesh.strategy()`"),
        ("plain optimizer", lambda: _plain_loop(mesh, model, plain), "DistributedOptimizer"),
    )


def _of_workers():
    return (("workers", tfdist.MultiWorkerMirroredStrategy, "A mesh has connected"),)


def _of_horovod(mesh):
    """Horovod was initialized without groups."""
    if mesh.shape != {"data": 1, "model": 4}:
        return ()
    return (("groups", lambda: parallel.Mesh({"model": 2}), "before any strategy"),)


def _plain_loop(mesh, model, optimizer):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    mesh.strategy().run(step, args=(tf.constant(X[:8]), tf.constant(Y[:8])))


def _made(mesh, make, optimizer=lambda: keras.optimizers.SGD()):
    with scope(mesh):
        return _compiled(make(mesh), optimizer())


def _frozen(mesh):
    model = masked(mesh)
    model.layers[0].trainable = model.layers[1].trainable = False
    return model


def _other_run(model, mesh):
    return model.predict(X, verbose=0) if mesh.model_rank else model.evaluate(X, Y, verbose=0)


def _rate_of(mesh):
    return lambda: keras.optimizers.SGD(0.01 * (1 + mesh.model_rank))


def _ending(mesh):
    return "a.h5" if mesh.rank else "a.weights.h5"


def _swapped(mesh):
    """Text with two words in the other order in rank 1: sums and norms are the same."""
    text = TEXT.copy()
    text[:, :2] = [3, 9] if mesh.model_rank == 1 else [9, 3]
    return text


def _checkpoint(model, folder):
    return tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))


def _in_scope(mesh):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mlp(mesh)


def _other_seed(mesh):
    keras.utils.set_random_seed(3 + mesh.rank)
    try:
        parallel.Mesh()
    finally:
        keras.utils.set_random_seed(3)
