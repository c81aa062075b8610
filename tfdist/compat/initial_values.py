"""The first values of a variable in parts, each computed where the part is, without the others.

Each element depends on its place in the variable, and on a seed where it is random. So the parts
together have the values of the whole variable, bit for bit; `philox.py` draws the random numbers.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import philox
from tfdist.compat.registry import KERAS, READ, REPLACED, touch
from tfdist.structures import Structure

_INITIALIZE = touch(
    "keras.src.backend.tensorflow.core:Variable",
    *("_initialize_with_initializer", REPLACED, "self", "initializer"),
    why="the initializer and the shape of a variable must be known before the whole value is "
    "computed: a partitioned variable may be too large for one process",
    versions=KERAS,
    instead="initializers that Keras calls with the rows of a part",
)
_SEED: dict[str, str] = {
    "why": "an initializer draws a seed for each variable, which its parts need alike",
    "versions": KERAS,
    "instead": "initializers that compute some elements of a variable",
}
_CAST_SEED = touch("keras.src.backend.tensorflow.random", "_cast_seed", READ, "seed", **_SEED)
_DRAW_SEED = touch("keras.src.random.seed_generator", "draw_seed", READ, "seed", **_SEED)

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
"""The device of the chief of parameter servers, which creates variables."""

# Of fewer bytes, it takes longer to make a function than to compute them.
_SMALL_BYTES = 1024 * 1024

_initializers = keras.initializers
_RANDOM = (
    _initializers.RandomUniform,
    _initializers.RandomNormal,
    _initializers.TruncatedNormal,
    _initializers.VarianceScaling,
)
_EQUAL = (_initializers.Zeros, _initializers.Ones, _initializers.Constant)
# Settings that may be arrays, with another number for each element of a row.
_NUMBERS = ("value", "minval", "maxval", "mean", "stddev")


class InitialValue:
    """The first value of a variable, for those who need a part of it.

    Args:
        initializer: of the variable; or a function that is called as one.
        shape: of the whole variable.
        dtype: of the variable.
        host: the device of this process' CPU.
    """

    def __init__(
        self,
        initializer: keras.initializers.Initializer,
        shape: tf.TensorShape,
        dtype: tf.DType,
        host: str,
    ):
        self.shape = shape
        self.dtype = dtype
        self._initializer = initializer
        self._host = host
        self._kind = _kind_of(initializer, dtype)
        self._whole: tf.Tensor | None = None

    @property
    def is_divisible(self) -> bool:
        """Whether some elements can be computed without the others."""
        return self._kind is not None

    @functools.cached_property
    def seed(self) -> list[int]:
        """Two integers that determine the random numbers; zeros where there are no such numbers.

        They are drawn once, as for one device: a generator of seeds gives others each time.
        """
        if self._kind not in _RANDOM:
            return [0, 0]
        return _CAST_SEED.get()(_DRAW_SEED.get()(self._initializer.seed)).numpy().tolist()

    @property
    def settings(self) -> str:
        """What determines the value, besides the seed; empty if it cannot be divided."""
        if self._kind is None:
            return ""
        # Of Keras' own class, whose code reads no other settings.
        config = self._kind.get_config(self._initializer)
        config.pop("seed", None)
        return repr([self._kind.__name__, config, self.shape.as_list(), self.dtype.name])

    def __call__(
        self,
        partition_shape: Sequence[int] | None = None,
        partition_offset: Sequence[int] | None = None,
    ) -> tf.Tensor:
        """The rows of a part, on the present device. Without arguments, the whole value.

        TensorFlow calls it like this for the variables of parameter servers.

        Args:
            partition_shape: the shape of the part.
            partition_offset: the place of the part's first element.
        """
        if partition_shape is None or partition_offset is None:
            return self._made(self.shape)
        shape, start = tf.TensorShape(partition_shape), int(partition_offset[0])
        if "partition_offset" in inspect.signature(self._initializer).parameters:
            asked = {"partition_shape": tuple(shape), "partition_offset": tuple(partition_offset)}
            return self._made(self.shape, **asked)
        if self.is_divisible:
            return self.elements(start * math.prod(shape[1:]), shape)
        if self._whole is None:
            with tf.device(self._host):
                self._whole = tf.convert_to_tensor(self._made(self.shape), self.dtype)
        return tf.identity(self._whole[start : start + shape[0]])

    def elements(self, first: int, shape: tf.TensorShape) -> tf.Tensor:
        """Elements that follow each other, on the present device, if the value is divisible.

        Args:
            first: the number of the first one among all elements.
            shape: of the result.
        """
        if self._kind in _EQUAL:
            return self._in_one(functools.partial(self._made, shape), shape)
        some = philox.SomeNumbers(first, shape, self.seed, self._host)

        def draw() -> tf.Tensor:
            with philox.drawing(some):
                return self._made(self.shape)

        return self._in_one(draw, shape)

    def _made(self, shape: tf.TensorShape, **asked: tuple[int, ...]) -> tf.Tensor:
        return self._initializer(tuple(shape), dtype=self.dtype.name, **asked)

    def _in_one(self, make: Callable[[], tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
        """Calls `make`: if it makes much, as one function of TensorFlow.

        The steps of such a function need memory once, and not each for itself. Another function for
        each part is what is wanted: TensorFlow is not to warn of it.
        """
        if shape.num_elements() * self.dtype.size < _SMALL_BYTES:
            return make()
        return tf.function(make, autograph=False).get_concrete_function()()


def _kind_of(initializer: Callable, dtype: tf.DType) -> Any:
    """The class of Keras whose code computes the values, if it can compute some alone; or None."""
    kinds = [*_EQUAL, *(_RANDOM if dtype in philox.PER_COUNT else ())]
    if any(np.ndim(getattr(initializer, name, 0)) > 0 for name in _NUMBERS):
        return None
    return next((kind for kind in kinds if type(initializer).__call__ is kind.__call__), None)


class _State(threading.local):
    created: tuple[Callable, tf.TensorShape] | None = None


_state = _State()


def initial_value(value: Structure | Callable, dtype: tf.DType | str | None) -> Any:
    """The first value of a variable that this thread creates, so that it can be made in parts.

    Args:
        value: what the variable was to be created with.
        dtype: of the variable.

    Returns:
        An `InitialValue`, where a Keras variable is created from an initializer; else `value`.
    """
    if _state.created is None or not callable(value):
        return value
    return InitialValue(*_state.created, tf.as_dtype(dtype), CHIEF)


def _noted(original: Callable) -> Callable:
    @functools.wraps(original)
    def _initialize_with_initializer(self: keras.Variable, initializer: Callable) -> None:
        outer = _state.created
        _state.created = initializer, self.shape
        try:
            original(self, initializer)
        finally:
            _state.created = outer

    return _initialize_with_initializer


def install() -> None:
    """Lets the parts of a variable be initialized one by one."""
    _INITIALIZE.replace(_noted)
