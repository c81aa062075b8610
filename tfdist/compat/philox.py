"""Random numbers for some elements of a tensor, without those for the others.

TensorFlow draws Keras' random numbers with the counter-based generator Philox (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): they depend on a seed and on the place of
an element. A counter that starts further on gives the numbers of later elements.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, REPLACED, touch
from tfdist.structures import Structure

_MODULE = "keras.src.backend.tensorflow.random"
_SOME: dict[str, str] = {
    "why": "an initializer computes its random numbers here, all at once. For a part of a variable "
    "it must compute only some",
    "versions": KERAS,
    "instead": "initializers that compute some elements of a variable",
}
_UNIFORM = touch(
    _MODULE, "uniform", REPLACED, "shape", "minval", "maxval", "dtype", "seed", **_SOME
)
_NORMAL, _TRUNCATED = (
    touch(_MODULE, name, REPLACED, "shape", "mean", "stddev", "dtype", "seed", **_SOME)
    for name in ("normal", "truncated_normal")
)

_PHILOX = 1
PER_COUNT = {tf.float16: 4, tf.bfloat16: 4, tf.float32: 4, tf.float64: 2}
"""How many elements of a type TensorFlow makes of one number of the counter."""
# How many numbers of the counter it reserves for each element of a truncated distribution: it may
# draw again and again.
_RESERVED = 256 // 4


class SomeNumbers:
    """Random numbers for some elements of a variable, which follow each other.

    Args:
        first: the number of the first element.
        shape: of the result.
        seed: of the whole variable.
        host: the device of this process' CPU.
    """

    def __init__(self, first: int, shape: tf.TensorShape, seed: Sequence[int], host: str):
        self._first = first
        self._shape = shape
        self._host = host
        with tf.device(host):
            made = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant(seed, tf.int32))
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
        groups, before = divmod(self._first, PER_COUNT[dtype])
        skipped = groups * (1 if reserved == 1 else reserved * PER_COUNT[dtype])
        counter = self._counter + skipped
        # As inputs of the function: in another process its constants above 2**63 would be others.
        with tf.init_scope(), tf.device(self._host):
            begin = tf.constant([counter % 2**64, (counter >> 64) % 2**64], tf.uint64)
        size = tf.constant([before + self._shape.num_elements()], tf.int64)
        drawn = operation(shape=size, key=self._key, counter=begin, alg=_PHILOX, dtype=dtype)
        return tf.reshape(drawn[before:] if before else drawn, self._shape)


class _State(threading.local):
    some: SomeNumbers | None = None


_state = _State()


@contextlib.contextmanager
def drawing(some: SomeNumbers) -> Iterator[None]:
    """In this context Keras' functions draw `some` numbers, instead of those that are asked for."""
    _state.some = some
    try:
        yield
    finally:
        _state.some = None


def _in_parts(operation: Callable, reserved: int, finish: Callable) -> Callable:
    """What makes one of Keras' functions draw only the elements that are asked for.

    Args:
        operation: draws the numbers.
        reserved: as for `SomeNumbers.draw`.
        finish: makes the result of the numbers and of Keras' two settings.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def draw(*args: Structure, **kwargs: Structure) -> tf.Tensor:
            some = _state.some
            if some is None:
                return original(*args, **kwargs)
            given = inspect.signature(original).bind(*args, **kwargs)
            given.apply_defaults()
            _, one, other, dtype, _ = given.args
            dtype = tf.as_dtype(dtype or keras.config.floatx())
            drawn = some.draw(operation, dtype, reserved)
            return finish(drawn, one, other)

        return draw

    return make


def install() -> None:
    """Lets Keras' functions draw some elements."""
    ops = tf.raw_ops

    # The settings are inputs where a function is traced. If they were constants, TensorFlow would
    # leave out "+ 0", and -0.0 would not become 0.0.
    def spread(drawn: tf.Tensor, low: float, high: float) -> tf.Tensor:
        with tf.init_scope():
            low, high = (tf.cast(number, drawn.dtype) for number in (low, high))
        return drawn * (high - low) + low

    def scaled(drawn: tf.Tensor, mean: float, stddev: float) -> tf.Tensor:
        with tf.init_scope():
            mean, stddev = (tf.convert_to_tensor(n, drawn.dtype) for n in (mean, stddev))
        return drawn * stddev + mean

    _UNIFORM.replace(_in_parts(ops.StatelessRandomUniformV2, 1, spread))
    _NORMAL.replace(_in_parts(ops.StatelessRandomNormalV2, 1, scaled))
    _TRUNCATED.replace(_in_parts(ops.StatelessTruncatedNormalV2, _RESERVED, scaled))
