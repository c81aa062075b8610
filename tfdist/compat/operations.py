"""The functions behind `keras.ops`: calling `keras.ops` is public, replacing these is not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import BOTH, KERAS, READ, REPLACED, touch
from tfdist.compat.stateless import stateless_scope
from tfdist.structures import Structure

_NUMPY = "keras.src.backend.tensorflow.numpy"
_NN = "keras.src.backend.tensorflow.nn"
_TAKE = touch(
    *(_NUMPY, "take", REPLACED, "x", "indices", "axis"),
    why="an embedding needs only a few rows of a table, so the whole table need not travel",
    versions=KERAS,
    instead="a `StatelessScope` that can be asked for parts of a value",
)
_EMPTY: dict[str, str] = {
    "why": "a replica without samples computes with tensors of shape (0, n). `add` takes such a "
    "tensor for a bias, and `max` and `min` refuse it because it is empty",
    "versions": KERAS,
    "instead": "functions that accept empty batches",
}
_ADD = touch(_NUMPY, "add", REPLACED, "x1", "x2", **_EMPTY)
_SUBTRACT = touch(_NUMPY, "subtract", READ, "x1", "x2", **_EMPTY)
_EXTREMA = {
    name: touch(_NUMPY, name, REPLACED, "x", "axis", "keepdims", "initial", **_EMPTY)
    for name in ("max", "min")
}
_NAMES = ["conv", "depthwise_conv", "separable_conv", "conv_transpose", "max_pool"]
if hasattr(keras.ops, "adaptive_max_pool"):  # since Keras 3.14
    _NAMES.append("adaptive_max_pool")
_NEIGHBOURHOODS = [
    touch(
        *(_NN, name, REPLACED, "inputs"),
        why="where TensorFlow uses oneDNN, on some CPUs, a convolution of an empty batch returns "
        "the shape of its input, and the gradient of `max_pool` crashes the process",
        versions=BOTH,
        instead="a TensorFlow that computes with empty batches",
    )
    for name in _NAMES
]


def hook_add(hook: Callable[[Callable, Callable, Any, Any], Any]) -> None:
    """Makes `keras.ops.add(x1, x2)` of tensors call `hook(add, subtract, x1, x2)`."""

    def make(add: Callable) -> Callable:
        @functools.wraps(add)
        def add_with_hook(x1: Structure, x2: Structure) -> Any:
            return hook(add, _SUBTRACT.get(), x1, x2)

        return add_with_hook

    _ADD.replace(make)


def hook_extremum(name: str, initial_of: Callable[[Any], Any]) -> None:
    """Gives `keras.ops.max` or `min` (`name`) a default `initial`: `initial_of(x)`."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def extremum(
            x: Structure, axis: int | None = None, keepdims: bool = False, initial: Structure = None
        ) -> Any:
            if initial is None:
                initial = initial_of(x)
            return original(x, axis=axis, keepdims=keepdims, initial=initial)

        return extremum

    _EXTREMA[name].replace(make)


def hook_neighbourhoods(hook: Callable[[Callable[[tf.Tensor], tf.Tensor], Any], Any]) -> None:
    """Makes Keras' convolutions and max pooling return `hook(compute, inputs)`.

    `compute(inputs)` is the original with its other arguments filled in.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def of_neighbourhood(inputs: Structure, *args: Any, **kwargs: Any) -> Any:
            return hook(lambda values: original(values, *args, **kwargs), inputs)

        return of_neighbourhood

    for found in _NEIGHBOURHOODS:
        found.replace(make)


def install() -> None:
    """Lets a `keras.StatelessScope` with a method `rows` look up the rows of a variable."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def take(x: Structure, indices: Structure, axis: int | None = None) -> Any:
            rows = getattr(stateless_scope(), "rows", None)
            composite = isinstance(indices, (tf.SparseTensor, tf.RaggedTensor))
            if rows is not None and axis == 0 and isinstance(x, keras.Variable) and not composite:
                found = rows(x, indices)
                if found is not None:
                    return found
            return original(x, indices, axis)

        return take

    _TAKE.replace(make)
