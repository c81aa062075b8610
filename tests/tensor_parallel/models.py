"""Models for the ranks of `test_job.py`: with layers in parts, and with Keras' own."""

import contextlib
import functools

import keras
import numpy as np

from tfdist import tensor_parallel as parallel

RANDOM = np.random.default_rng(0)
# The last batch of 8 has one sample: with two model groups one of them gets none.
X = RANDOM.normal(size=(25, 8)).astype("float32")
TEXT = RANDOM.integers(0, 12, (25, 5))
Y = RANDOM.normal(size=(25, 4)).astype("float32")
layers = keras.layers


def mlp(mesh, dropout=0.3):
    """Layers cut in columns and in rows; some without a bias, and some with a random one."""

    def dense(units, split, **options):
        if mesh is None:
            return layers.Dense(units, **options)
        return parallel.Dense(units, mesh, split, **options)

    return keras.Sequential(
        [
            keras.Input((8,)),
            dense(12, "columns", activation="softmax", bias_initializer=drawn),
            layers.Dropout(dropout),
            dense(6, "rows", activation="tanh", bias_initializer="random_normal"),
            layers.BatchNormalization(synchronized=True),
            dense(8, "columns", use_bias=False),
            dense(4, "rows", use_bias=False),
            layers.Dense(4, bias_initializer=drawn),
        ]
    )


def mlp_alike(mesh):
    """The same, in which no random numbers depend on the replica."""
    return mlp(mesh, dropout=0.0)


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


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A model that `fit` builds."""

    def __init__(self, mesh):
        super().__init__()
        dense = layers.Dense if mesh is None else functools.partial(parallel.Dense, mesh=mesh)
        self.first, self.second = dense(8, activation="tanh"), layers.Dense(4)

    def call(self, x):
        return self.second(self.first(x))


def scope(mesh):
    """Where a model is made: in no scope, if there is one model group."""
    if mesh is None or mesh.shape["data"] == 1:
        return contextlib.nullcontext()
    return mesh.strategy().scope()


def difference(first, second):
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))
