"""The first values of a variable in parts, each computed where the part is, without the others.

Keras' random numbers depend on a seed and on the place of an element in the variable. TensorFlow
draws them with the counter-based generator Philox (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011): a counter that starts further on gives the numbers of later elements. So the
parts together have the values of the whole variable, bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
_MODULE = "keras.src.backend.tensorflow.random"
_ROWS: dict[str, str] = {
    "why": "an initializer computes its random numbers here, all rows at once. For a part of a "
    "variable it must compute only some",
    "versions": KERAS,
    "instead": "initializers that compute some rows of a variable",
}
_UNIFORM = touch(
    _MODULE, "uniform", REPLACED, "shape", "minval", "maxval", "dtype", "seed", **_ROWS
)
_NORMAL, _TRUNCATED = (
    touch(_MODULE, name, REPLACED, "shape", "mean", "stddev", "dtype", "seed", **_ROWS)
    for name in ("normal", "truncated_normal")
)
_CAST_SEED = touch(_MODULE, "_cast_seed", READ, "seed", **_ROWS)
_DRAW_SEED = touch("keras.src.random.seed_generator", "draw_seed", READ, "seed", **_ROWS)

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
"""The device of the chief of parameter servers, which creates variables."""

_PHILOX = 1
# How many elements of a type TensorFlow makes of one number of the counter; and how many numbers of
# the counter it reserves for an element of a truncated distribution, which draws again and again.
_PER_COUNT = {tf.float16: 4, tf.bfloat16: 4, tf.float32: 4, tf.float64: 2}
_RESERVED = 256 // 4

_initializers = keras.initializers
_RANDOM = (
    _initializers.RandomUniform,
    _initializers.RandomNormal,
    _initializers.TruncatedNormal,
    _initializers.VarianceScaling,
)
_EQUAL = (_initializers.Zeros, _initializers.Ones, _initializers.Constant)


class InitialValue:
    """The first value of a variable, for TensorFlow, which may ask for a part.

    Args:
        initializer: of the variable; or a function that is called as one.
        shape: of the whole variable.
        dtype: of the variable.
    """

    def __init__(
        self, initializer: keras.initializers.Initializer, shape: tf.TensorShape, dtype: tf.DType
    ):
        self.shape = shape
        self.dtype = dtype
        self._initializer = initializer
        self._whole: tf.Tensor | None = None
        self._seed: tf.Tensor | None = None

    def __call__(
        self,
        partition_shape: Sequence[int] | None = None,
        partition_offset: Sequence[int] | None = None,
    ) -> tf.Tensor:
        """The rows of a part, on the present device. Without arguments, the whole value.

        Args:
            partition_shape: the shape of the part.
            partition_offset: the place of the part's first element.
        """
        if partition_shape is None or partition_offset is None:
            return self._made(self.shape)
        shape, start = tf.TensorShape(partition_shape), int(partition_offset[0])
        initializer = self._initializer
        if "partition_offset" in inspect.signature(initializer).parameters:
            asked = {"partition_shape": tuple(shape), "partition_offset": tuple(partition_offset)}
            return self._made(self.shape, **asked)
        if _calls(initializer, _EQUAL) and np.ndim(getattr(initializer, "value", 0)) == 0:
            return _in_one(functools.partial(self._made, shape))
        if _calls(initializer, _RANDOM) and self.dtype in _PER_COUNT:
            return self._drawn(shape, start)
        if self._whole is None:
            with tf.device(CHIEF):
                self._whole = tf.convert_to_tensor(self._made(self.shape), self.dtype)
        return tf.identity(self._whole[start : start + shape[0]])

    def _made(self, shape: tf.TensorShape, **asked: tuple[int, ...]) -> tf.Tensor:
        return self._initializer(tuple(shape), dtype=self.dtype.name, **asked)

    def _drawn(self, shape: tf.TensorShape, start: int) -> tf.Tensor:
        if self._seed is None:  # once: a generator of seeds gives another one each time
            self._seed = _CAST_SEED.get()(_DRAW_SEED.get()(self._initializer.seed))
        rows = _Rows(shape, start, self._seed.numpy())

        def draw() -> tf.Tensor:
            with _drawing(rows):
                return self._made(self.shape)

        return _in_one(draw)


def _in_one(make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Calls a function as one of TensorFlow, whose steps need memory once and not each for itself.

    Another function for each part is what is wanted: TensorFlow is not to warn of it.
    """
    return tf.function(make, autograph=False).get_concrete_function()()


def _calls(initializer: Callable, kinds: Sequence[type]) -> bool:
    """Whether an initializer computes its values with the code of one of Keras' classes."""
    return type(initializer).__call__ in [kind.__call__ for kind in kinds]


class _Rows:
    """Random numbers for some rows of a variable.

    Args:
        shape: of these rows.
        start: the number of the first row.
        seed: of the whole variable; two integers.
    """

    def __init__(self, shape: tf.TensorShape, start: int, seed: np.ndarray):
        self._shape = shape
        self._start = start
        with tf.device(CHIEF):
            made = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        self._key = made.key
        low, high = (int(number) for number in made.counter.numpy())
        self._counter = high << 64 | low

    def draw(self, operation: Callable, dtype: tf.DType, reserved: int = 1) -> tf.Tensor:
        """The random numbers.

        Args:
            operation: draws numbers, given a counter.
            dtype: of the numbers.
            reserved: the numbers of the counter for each element.
        """
        first = self._start * math.prod(self._shape[1:])
        groups, before = divmod(first, _PER_COUNT[dtype])
        skipped = groups * (1 if reserved == 1 else reserved * _PER_COUNT[dtype])
        counter = self._counter + skipped
        size = self._shape.num_elements()
        # As inputs of the function: in another process its constants above 2**63 would be others.
        with tf.init_scope(), tf.device(CHIEF):
            begin = tf.constant([counter % 2**64, (counter >> 64) % 2**64], tf.uint64)
        drawn = operation(
            shape=[before + size], key=self._key, counter=begin, alg=_PHILOX, dtype=dtype
        )
        return tf.reshape(drawn[before:] if before else drawn, self._shape)


class _State(threading.local):
    created: tuple[Callable, tf.TensorShape] | None = None
    rows: _Rows | None = None


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
    return InitialValue(*_state.created, tf.as_dtype(dtype))


@contextlib.contextmanager
def _drawing(rows: _Rows) -> Iterator[None]:
    _state.rows = rows
    try:
        yield
    finally:
        _state.rows = None


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


def _with_rows(operation: Callable, reserved: int, finish: Callable) -> Callable:
    """What makes one of Keras' functions draw only the rows that are asked for.

    Args:
        operation: draws the numbers.
        reserved: as for `_Rows.draw`.
        finish: makes the result of the numbers and of Keras' two settings.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def draw(*args: Structure, **kwargs: Structure) -> tf.Tensor:
            rows = _state.rows
            if rows is None:
                return original(*args, **kwargs)
            given = inspect.signature(original).bind(*args, **kwargs)
            given.apply_defaults()
            _, one, other, dtype, _ = given.args
            dtype = tf.as_dtype(dtype or keras.config.floatx())
            drawn = rows.draw(operation, dtype, reserved)
            return finish(drawn, one, other)

        return draw

    return make


def install() -> None:
    """Lets the parts of a variable be initialized one by one."""
    ops = tf.raw_ops

    def spread(drawn: tf.Tensor, low: float, high: float) -> tf.Tensor:
        low, high = tf.cast(low, drawn.dtype), tf.cast(high, drawn.dtype)  # as Keras does it
        return drawn * (high - low) + low

    def scaled(drawn: tf.Tensor, mean: float, stddev: float) -> tf.Tensor:
        return drawn * stddev + mean

    _INITIALIZE.replace(_noted)
    _UNIFORM.replace(_with_rows(ops.StatelessRandomUniformV2, 1, spread))
    _NORMAL.replace(_with_rows(ops.StatelessRandomNormalV2, 1, scaled))
    _TRUNCATED.replace(_with_rows(ops.StatelessTruncatedNormalV2, _RESERVED, scaled))
