"""Layers by family; each family is one model that applies all of them to the same inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


@dataclasses.dataclass(frozen=True)
class Family:
    """Layers that take inputs of the same shape.

    Attributes:
        shape: of one sample.
        layers: makes them.
        inputs: makes samples, of a number; None for random numbers.
        dtype: of the inputs.
        is_deterministic: whether training on several devices equals that on one.
    """

    shape: tuple
    layers: Callable[[], Sequence[Callable]]
    inputs: Callable[[int], Any] | None = None
    dtype: str = "float32"
    is_deterministic: bool = True

    def samples(self, number: int) -> Any:
        """The first samples, always the same."""
        if self.inputs is not None:
            return self.inputs(number)
        return np.random.default_rng(3).normal(size=(number, *self.shape)).astype("float32")

    def model(self, **options: Any) -> keras.Model:
        """The model of all layers, whose outputs are one vector."""
        inputs = keras.Input(self.shape, dtype=self.dtype)
        outputs = [layers.Flatten()(layer(inputs)) for layer in self.layers()]
        outputs = [ops.cast(output, "float32") for output in outputs]
        joined = layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
        model = keras.Model(inputs, [joined, layers.Dense(1)(joined)])
        model.compile(keras.optimizers.SGD(1e-3), loss=[None, "mse"], **options)
        return model


def _chain(*chained: Callable) -> Callable:
    def apply(x: Any) -> Any:
        for layer in chained:
            x = layer(x)
        return x

    return apply


def _core() -> list:
    def tied(x: Any) -> Any:
        return layers.Dense(6)(x) + layers.Dense(6)(x)

    return [
        tied,
        lambda x: x * 2.0 + x,
        lambda x: ops.add(x, ops.square(x)) - ops.mean(x, axis=-1, keepdims=True),
        lambda x: ops.matmul(x[:, :, None], x[:, None, :]),
        lambda x: ops.concatenate([x, ops.softmax(x)], axis=1),
        lambda x: ops.einsum("ij,ik->ijk", x, x),
        lambda x: ops.where(x > 0, x, ops.zeros_like(x)),
        lambda x: ops.split(x, 2, axis=1)[0],
        layers.Dense(4, use_bias=False),
        layers.EinsumDense("ab,bc->ac", 4, bias_axes="c"),
        layers.Lambda(lambda x: x + 1.0),
        layers.Identity(),
        layers.Masking(),
    ]


def _convolution_1d() -> list:
    return [
        layers.Conv1D(3, 2),
        layers.Conv1D(3, 2, padding="causal", dilation_rate=2),
        layers.Conv1DTranspose(3, 2, strides=2),
        layers.DepthwiseConv1D(2),
        layers.SeparableConv1D(3, 2),
        layers.ZeroPadding1D(1),
        layers.Cropping1D(1),
        layers.UpSampling1D(2),
        layers.AveragePooling1D(2),
        layers.MaxPooling1D(2),
        layers.GlobalAveragePooling1D(),
        layers.GlobalMaxPooling1D(),
        layers.TimeDistributed(layers.Dense(2)),
        layers.Permute((2, 1)),
        layers.Reshape((-1, 2)),
    ]


def _convolution_2d() -> list:
    return [
        layers.Conv2D(3, 2),
        layers.Conv2D(4, 2, groups=2, strides=2, padding="same"),
        layers.Conv2DTranspose(3, 2, strides=2),
        layers.DepthwiseConv2D(2),
        layers.SeparableConv2D(3, 2),
        layers.ZeroPadding2D(1),
        layers.Cropping2D(1),
        layers.UpSampling2D(2, interpolation="bilinear"),
        layers.AveragePooling2D(2),
        layers.MaxPooling2D(2),
        layers.GlobalAveragePooling2D(),
        layers.GlobalMaxPooling2D(keepdims=True),
        layers.TimeDistributed(layers.Conv1D(2, 2)),
    ]


def _convolution_3d() -> list:
    return [
        layers.Conv3D(3, 2),
        layers.Conv3DTranspose(3, 2),
        layers.ZeroPadding3D(1),
        layers.Cropping3D(1),
        layers.UpSampling3D(2),
        layers.AveragePooling3D(2),
        layers.MaxPooling3D(2),
        layers.GlobalAveragePooling3D(),
        layers.GlobalMaxPooling3D(),
        layers.ConvLSTM2D(2, 2),
    ]


def _recurrent() -> list:
    return [
        layers.LSTM(3),
        layers.LSTM(3, return_sequences=True, unroll=True),
        layers.GRU(3),
        layers.GRU(3, reset_after=False),
        layers.SimpleRNN(3),
        layers.Bidirectional(layers.LSTM(2, return_sequences=True)),
        layers.Bidirectional(layers.GRU(2), merge_mode="sum"),
        layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
        layers.RNN(layers.SimpleRNNCell(3), go_backwards=True),
        _chain(layers.Reshape((5, 2, 2)), layers.ConvLSTM1D(2, 2)),
    ]


def _attention() -> list:
    return [
        lambda x: layers.MultiHeadAttention(2, 3)(x, x),
        lambda x: layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True),
        lambda x: layers.GroupQueryAttention(4, 4, 2)(x, x),
        lambda x: layers.Attention(use_scale=True)([x, x]),
        lambda x: layers.AdditiveAttention()([x, x]),
        lambda x: layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x)),
    ]


def _normalization() -> list:
    return [
        layers.BatchNormalization(synchronized=True),
        layers.LayerNormalization(),
        layers.RMSNormalization(),
        layers.GroupNormalization(2),
        layers.UnitNormalization(),
        layers.SpectralNormalization(layers.Dense(3)),
        layers.Normalization(mean=0.5, variance=2.0),
    ]


def _merging() -> list:
    def merged(layer: Callable) -> Callable:
        return lambda x: layer([layers.Dense(4)(x), layers.Dense(4)(x)])

    return [
        merged(layers.Add()),
        merged(layers.Subtract()),
        merged(layers.Multiply()),
        merged(layers.Average()),
        merged(layers.Maximum()),
        merged(layers.Minimum()),
        merged(layers.Concatenate()),
        merged(layers.Dot(axes=1)),
        _chain(layers.RepeatVector(3), lambda x: layers.Dot(axes=(2, 2))([x, x])),
        lambda x: layers.Add()([layers.Reshape((1, 1, 4))(x), layers.Reshape((1, 1, 4))(x)]),
    ]


def _activation() -> list:
    return [
        layers.ReLU(max_value=1.0),
        layers.LeakyReLU(),
        layers.PReLU(),
        layers.ELU(),
        layers.Softmax(),
        layers.Activation("gelu"),
        layers.Activation("log_softmax"),
    ]


def _random() -> list:
    return [
        layers.Dropout(0.5),
        layers.AlphaDropout(0.5),
        layers.GaussianDropout(0.5),
        layers.GaussianNoise(0.5),
        layers.SpatialDropout1D(0.5),
        layers.ActivityRegularization(l2=0.1),
    ]


def _numbers() -> list:
    return [
        layers.Embedding(10, 3),
        layers.IntegerLookup(vocabulary=[1, 2, 3]),
        layers.CategoryEncoding(10, output_mode="multi_hot"),
        layers.CategoryEncoding(10, output_mode="count"),
        layers.Hashing(5),
        _chain(layers.Embedding(10, 3, mask_zero=True), layers.LSTM(2)),
        _chain(layers.Embedding(10, 3, mask_zero=True), layers.GlobalAveragePooling1D()),
        lambda x: layers.Discretization([2.0, 5.0])(ops.cast(x, "float32")),
    ]


def _images() -> list:
    return [
        layers.Rescaling(0.5, offset=1.0),
        layers.Resizing(3, 7),
        layers.CenterCrop(3, 4),
        layers.RandomFlip(),
        layers.RandomRotation(0.2),
        layers.RandomTranslation(0.2, 0.2),
        layers.RandomZoom(0.2),
        layers.RandomContrast(0.2),
        layers.RandomBrightness(0.2, value_range=(0, 1)),
        layers.RandomShear(0.2, 0.2),
        layers.RandomPerspective(0.2),
        layers.RandomErasing(value_range=(0, 1)),
        layers.RandomColorJitter((0, 1), 0.2, 0.2, 0.2, 0.1),
        layers.AutoContrast(value_range=(0, 1)),
        layers.Solarization(value_range=(0, 1)),
    ]


def _strings() -> list:
    words = ["a", "b", "c"]
    return [
        layers.StringLookup(vocabulary=words),
        layers.StringLookup(vocabulary=words, output_mode="multi_hot"),
        _chain(layers.StringLookup(vocabulary=words), layers.Embedding(5, 3)),
        layers.Hashing(7),
        layers.TextVectorization(vocabulary=words, output_sequence_length=4),
        layers.TextVectorization(vocabulary=words, output_mode="tf_idf", idf_weights=[1.0] * 3),
        lambda x: layers.HashedCrossing(5)((x, x)),
    ]


FAMILIES = {
    "core": Family((6,), _core),
    "convolution and pooling, 1D": Family((6, 4), _convolution_1d),
    "convolution and pooling, 2D": Family((5, 6, 4), _convolution_2d),
    "convolution and pooling, 3D": Family((4, 4, 4, 2), _convolution_3d),
    "recurrent": Family((5, 4), _recurrent),
    "attention": Family((5, 4), _attention),
    "normalization": Family((5, 4), _normalization),
    "merging": Family((4,), _merging),
    "activation": Family((4,), _activation),
    "regularization": Family((5, 4), _random, is_deterministic=False),
    "integers": Family((5,), _numbers, lambda n: np.arange(5 * n).reshape(n, 5) % 4, dtype="int64"),
    "images": Family((6, 6, 3), _images, is_deterministic=False),
    "strings": Family((1,), _strings, lambda n: tf.constant([[c] for c in "abcde"[:n]]), "string"),
}
