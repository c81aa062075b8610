"""Run by each rank of the job of `test_job.py`: trains in parts, and compares with one device."""

import contextlib
import functools
import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from tfdist import tensor_parallel as parallel

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(21, 8)).astype("float32")
TEXT = RANDOM.integers(0, 12, (21, 5))
Y = RANDOM.normal(size=(21, 4)).astype("float32")
layers = keras.layers


def mlp(mesh):
    """Layers cut in columns and in rows; some without a bias, and some with a random one."""

    def dense(units, split, **options):
        if mesh is None:
            return layers.Dense(units, **options)
        return parallel.Dense(units, mesh, split, **options)

    return keras.Sequential(
        [
            keras.Input((8,)),
            dense(12, "columns", activation="softmax", bias_initializer=drawn),
            layers.Dropout(0.3),
            dense(6, "rows", activation="tanh", bias_initializer="random_normal"),
            layers.BatchNormalization(),
            dense(8, "columns", use_bias=False),
            dense(4, "rows", use_bias=False),
            layers.Dense(4, bias_initializer=drawn),
        ]
    )


def drawn(shape, dtype=None):
    """An initializer that draws from Keras' default seeds."""
    return keras.random.normal(shape, dtype=dtype)


class FeedForward(layers.Layer):
    """What that of `tensor_parallel` is on one device; Keras names groups in files by the class."""

    def __init__(self, hidden, units, name):
        super().__init__(name=name)
        self.supports_masking = True  # as `keras.layers.Dense`
        self.first = layers.Dense(hidden, activation="gelu", name="first")
        self.second = layers.Dense(units, name="second")

    def build(self, shape):
        self.first.build(shape)
        self.second.build((*shape[:-1], self.first.units))

    def call(self, x):
        return self.second(self.first(x))


def transformer(mesh):
    """A block as Megatron's: embedding, attention, feed-forward, and what flows around them."""
    if mesh is None:
        embedding = layers.Embedding(12, 8, mask_zero=True)
        attention = layers.MultiHeadAttention(4, 3, value_dim=2)
        hidden = FeedForward(16, 8, "hidden")
    else:
        embedding = parallel.Embedding(12, 8, mesh, mask_zero=True)
        attention = parallel.MultiHeadAttention(4, 3, mesh, value_dim=2)
        hidden = parallel.FeedForward(16, 8, mesh, name="hidden")
    ids = keras.Input((5,), dtype="int32")
    x = embedding(ids)
    y = layers.LayerNormalization()(x)
    x = x + attention(y, y, use_causal_mask=True)
    x = x + hidden(layers.LayerNormalization()(x))
    return keras.Model(ids, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


def masked(mesh):
    """What two Dense layers do between an embedding that masks and a layer that heeds the mask."""
    embedding = (
        layers.Embedding if mesh is None else functools.partial(parallel.Embedding, mesh=mesh)
    )
    hidden = FeedForward(16, 8, "hidden") if mesh is None else parallel.FeedForward(16, 8, mesh)
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            embedding(12, 8, mask_zero=True),
            hidden,
            layers.GlobalAveragePooling1D(),
            layers.Dense(4),
        ]
    )


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.002, epsilon=1e-3, weight_decay=0.01),
    "clipped": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01),
    "averaged": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
}
# The default suite trains the first ones.
USUAL = 3
CASES = [
    ("mlp", mlp, X, "accumulated", {"run_eagerly": True}),
    ("masked", masked, TEXT, "sgd", {}),
    ("transformer", transformer, TEXT, "clipped", {}),
    ("mlp", mlp, X, "sgd", {}),
    ("mlp", mlp, X, "averaged", {}),
    ("transformer", transformer, TEXT, "sgd", {}),
    ("transformer", transformer, TEXT, "adam", {}),
]


def train(make, mesh, x, optimizer, options):
    """The model and its logs; the same random numbers each time."""
    keras.utils.set_random_seed(3)
    model = make(mesh)
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"], **options)
    fit = model.fit(x, Y, batch_size=8, epochs=2, verbose=0)
    predicted = model.predict(x, batch_size=8, verbose=0)
    logs = [*fit.history["loss"], *fit.history["mae"], *model.evaluate(x, Y, verbose=0)]
    return model, np.concatenate([logs, predicted.ravel()])


def difference(first, second):
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def equality(mesh, folder, cases):
    """By case: how far weights and logs are from one device, and how large the parts are."""
    found = {}
    for name, make, x, optimizer, options in cases:
        model, logs = train(make, mesh, x, optimizer, options)
        path = folder / f"{name}-{optimizer}.weights.h5"
        mesh.save_weights(model, path)
        mesh.functions.processes.sum(tf.constant(0.0))  # the file is there
        plain, expected = train(make, None, x, optimizer, options)
        trained = plain.get_weights()
        plain.load_weights(path)
        loaded = make(mesh)
        loaded.load_weights(path)
        found[f"{name}, {optimizer}"] = {
            "weights": difference(plain.get_weights(), trained),
            "logs": difference([logs], [expected]),
            "loaded again": difference(loaded.get_weights(), model.get_weights()),
            "part": model.count_params() / plain.count_params(),
        }
    return found


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


def loops(mesh, folder):
    """How far weights are from one device after loops of one's own."""
    found = []
    for make, x in ((transformer, TEXT), (mlp, X)):
        path = folder / f"{make.__name__}-loop.weights.h5"
        mesh.save_weights(loop(make, mesh, x), path)
        mesh.functions.processes.sum(tf.constant(0.0))  # the file is there
        plain = loop(make, None, x)
        trained = plain.get_weights()
        plain.load_weights(path)
        found.append(difference(plain.get_weights(), trained))
    return max(found)


def _compiled(model, optimizer="sgd", **options):
    model.compile(optimizer, "mse", **options)
    return model


def _all_in_parts(mesh):
    part = parallel.Dense(4, mesh, "rows", use_bias=False)
    return _compiled(keras.Sequential([keras.Input((8,)), part]))


@contextlib.contextmanager
def _expecting(kind, text, errors, name):
    try:
        yield
    except kind as error:
        errors[name] = "" if text in str(error) else f"{type(error).__name__}: {error}"
    else:
        errors[name] = "nothing was raised"


def refusals(mesh, folder):
    """By case: "" if it was refused and the weights are unchanged."""
    errors = {}
    own = X + mesh.rank
    model = _compiled(mlp(mesh))
    before = model.get_weights()
    lamb, clipping = keras.optimizers.Lamb(), keras.optimizers.SGD(global_clipnorm=1.0)
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "rank.weights.h5", save_weights_only=True)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    for name, refused, text in (
        ("clipping", lambda: _compiled(mlp(mesh), clipping).fit(X, Y, verbose=0), "clip"),
        ("lamb", lambda: _compiled(mlp(mesh), lamb).fit(X, Y, verbose=0), "each element"),
        ("scale", lambda: _compiled(mlp(mesh), scaled).fit(X, Y, verbose=0), "plain optimizer"),
        ("all in parts", lambda: _all_in_parts(mesh).fit(X, Y, verbose=0), "has none"),
        ("run", lambda: _other_run(model, mesh), "begins `evaluate`"),
        ("length", lambda: model.evaluate(X[mesh.rank :], Y[mesh.rank :], verbose=0), "samples"),
        ("rate", lambda: _other_rate(mesh).fit(X, Y, verbose=0), "learning rate"),
        ("ending", lambda: mesh.save_weights(model, folder / _ending(mesh)), "must end with"),
        ("export", lambda: model.export(folder / "exported"), "mesh.save_weights"),
        ("saving", lambda: model.save_weights(folder / "other.weights.h5"), "mesh.save_weights"),
        ("model file", lambda: model.save(folder / "other.keras"), "mesh.save_weights"),
        ("checkpoint", lambda: model.fit(X, Y, callbacks=[checkpoint], verbose=0), "do not save"),
        ("units", lambda: parallel.Dense(7, mesh), "multiple of their number"),
        ("shape", lambda: parallel.Mesh({"data": 2, "model": 1}), "one model group"),
        ("strategy", lambda: _in_scope(mesh), "train with no strategy"),
        ("seed", lambda: _other_seed(mesh), "random seed"),
    ):
        with _expecting(ValueError, text, errors, name):
            refused()
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "data"):
        model.fit(own, Y, batch_size=8, verbose=0)
    with _expecting(Exception, "", errors, "no folder"):
        mesh.save_weights(model, folder / "none" / f"{mesh.rank}" / "a.weights.h5")
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "ids"):
        transformer(mesh).predict(_swapped(mesh), verbose=0)
    frozen = masked(mesh)
    frozen.layers[0].trainable = frozen.layers[1].trainable = False
    head = frozen.layers[-1].get_weights()
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "frozen"):
        _compiled(frozen).fit(TEXT, Y + mesh.rank, batch_size=8, verbose=0)
    errors["head"] = "changed" if difference(head, frozen.layers[-1].get_weights()) else ""
    mixed = X[::-1] if mesh.rank else X
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "order"):
        model.fit(mixed, Y, batch_size=21, verbose=0)
    with _expecting(tf.errors.InvalidArgumentError, "not seen the same batch", errors, "targets"):
        model.fit(X, Y + mesh.rank, batch_size=8, verbose=0)
    with _expecting(tf.errors.InvalidArgumentError, "no such row", errors, "rows"):
        transformer(mesh).predict(TEXT + 5, verbose=0)
    changed = [
        weight.path
        for weight, first in zip(model.weights, before, strict=True)
        if weight.trainable and not np.array_equal(first, weight.numpy())
    ]
    errors["weights"] = f"changed: {changed}" if changed else ""
    return errors


def _other_run(model, mesh):
    return model.predict(X, verbose=0) if mesh.rank else model.evaluate(X, Y, verbose=0)


def _other_rate(mesh):
    return _compiled(mlp(mesh), keras.optimizers.SGD(0.01 * (1 + mesh.rank)))


def _ending(mesh):
    return "a.h5" if mesh.rank else "a.weights.h5"


def _swapped(mesh):
    """Text with two words in the other order in rank 1: sums and norms are the same."""
    text = TEXT.copy()
    text[0, :2] = [3, 9] if mesh.rank == 1 else [9, 3]
    return text


def _in_scope(mesh):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mlp(mesh)


def _other_seed(mesh):
    keras.utils.set_random_seed(3 + mesh.rank)
    try:
        parallel.Mesh()
    finally:
        keras.utils.set_random_seed(3)


def main():
    folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    keras.utils.set_random_seed(3)
    mesh = parallel.Mesh()
    found = {"shape": mesh.shape, "equality": equality(mesh, folder, CASES[:count])}
    found["loops"] = loops(mesh, folder)
    found["refusals"] = refusals(mesh, folder)
    (folder / f"{mesh.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
