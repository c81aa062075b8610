"""Operations that ranks do together within a layer, each with its gradient.

All ranks have the same values outside of a layer. `enter` and `leave` are Megatron's f and g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes

_TOLERANCE = 1e-4
_SMALLEST = 1e-6
_MIX = (-7046029254386353131, -4658895280553007687)  # odd, with about as many ones as zeros

_INPUT = (
    "The input of a layer in parts differs between the ranks: they have not seen the same batch, "
    "or not begun with the same weights. Give all ranks the same data in the same order, and the "
    "same random seed. Received, of each rank, numbers that depend on the whole input:"
)


class Functions:
    """The operations of the ranks of one model group.

    Args:
        engine: carries tensors between the ranks.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._size, self._rank = engine.replicas, engine.processes.rank

    @property
    def processes(self) -> Processes:
        """The ranks, which also talk outside of steps."""
        return self._engine.processes

    def same(self, tensors: Sequence[tf.Tensor], why: str) -> list[tf.Operation]:
        """Operations that fail in all ranks, with `why`, if these tensors differ between ranks.

        Each rank gives a few numbers for each tensor. Rounding changes the last digits of those of
        floating-point tensors: they may differ by 1e-4 of the norm. Others must be equal.
        """
        floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
        others = [tensor for tensor in tensors if not tensor.dtype.is_floating]
        checked = []
        if floats:
            rows = self._rows([_numbers(tensor) for tensor in floats])
            checked.append(tf.debugging.Assert(_are_near(rows), [why, rows], summarize=64))
        if others:
            rows = self._rows([_digest(tensor) for tensor in others])
            fits = tf.reduce_all(rows == rows[:1])
            checked.append(tf.debugging.Assert(fits, [why, rows], summarize=64))
        return [
            op for op in checked if op is not None
        ]  # None in eager steps: it has failed already

    def _rows(self, numbers: list[tf.Tensor]) -> tf.Tensor:
        """`[ranks, tensors, numbers of each]`."""
        return self._engine.all_gather(tf.stack(numbers)[tf.newaxis])

    def enter(self, tensor: tf.Tensor) -> tf.Tensor:
        """`tensor`, whose gradient is the sum of those of all ranks; the same in all of them."""
        return self._enter(self.checked(tensor))

    def leave(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks; each rank gets the gradient of the sum."""
        return _with_gradient(self._sum, self._enter)(tensor)

    def join(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all ranks, joined along the last dimension."""
        return _with_gradient(self._joined, self._cut)(tensor)

    def cut(self, tensor: tf.Tensor) -> tf.Tensor:
        """This rank's part of the last dimension of a tensor that is the same in all ranks."""
        return self._cut(self.checked(tensor))

    def checked(self, tensor: tf.Tensor) -> tf.Tensor:
        """`tensor`, the input of a layer, once it is known to be the same in all ranks."""
        with tf.control_dependencies(self.same([tensor], _INPUT)):
            return tf.identity(tensor)

    # Each is the gradient of another one, so that gradients of gradients are right too.

    def _enter(self, tensor: tf.Tensor) -> tf.Tensor:
        return _with_gradient(tf.identity, self.leave)(tensor)

    def _cut(self, tensor: tf.Tensor) -> tf.Tensor:
        return _with_gradient(self._part, self.join)(tensor)

    def _sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(self._engine.all_reduce([tensor])[0], tensor.shape)

    def _joined(self, tensor: tf.Tensor) -> tf.Tensor:
        parts = self._engine.all_gather(tensor[tf.newaxis])
        return tf.concat(tf.unstack(parts, num=self._size), axis=-1)

    def _part(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.split(tensor, self._size, axis=-1)[self._rank]


def _numbers(tensor: tf.Tensor) -> tf.Tensor:
    """The norm of a tensor, and two sums in which each place has another weight."""
    values = tf.reshape(tf.cast(tf.stop_gradient(tensor), tf.float32), [-1])
    places = tf.cast(tf.range(tf.size(values)) % 9973, tf.float32)
    norm = tf.sqrt(tf.reduce_sum(values**2))
    weights = (tf.cos(places), tf.sin(places))
    return tf.stack([norm, *(tf.reduce_sum(values * weight) for weight in weights)])


def _are_near(rows: tf.Tensor) -> tf.Tensor:
    """Whether the `_numbers` of all ranks are equal but for rounding."""
    spread = tf.reduce_max(rows, 0) - tf.reduce_min(rows, 0)
    norms = tf.reduce_max(rows[..., :1], 0)
    bound = _TOLERANCE * norms + _SMALLEST * tf.reduce_max(norms)
    # What is not finite in all ranks is the user's matter, as on one device.
    return tf.reduce_all((spread <= bound) | tf.reduce_all(~tf.math.is_finite(rows), 0))


def _digest(tensor: tf.Tensor) -> tf.Tensor:
    """The size of an integer tensor, and a sum of its elements modulo 2**64.

    The weights of the sum are mixed from the places of elements, so that what differs in a few
    places, or is only in another order, gives another sum.
    """
    values = tf.reshape(tf.cast(tensor, tf.int64), [-1])
    size = tf.size(values, tf.int64)
    weights = (tf.range(size) + 1) * _MIX[0]
    weights = tf.bitwise.bitwise_xor(weights, tf.bitwise.right_shift(weights, 29)) * _MIX[1]
    weights = tf.bitwise.bitwise_xor(weights, tf.bitwise.right_shift(weights, 32))
    return tf.stack([size, tf.reduce_sum(values * weights)])


def _with_gradient(
    forward: Callable[[tf.Tensor], tf.Tensor], backward: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def function(tensor: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        # TensorFlow asks for gradients by the variables that keep an engine's operations in graphs.
        def gradient(
            of_output: tf.Tensor, variables: tuple = ()
        ) -> tuple[tf.Tensor, list[None]] | tf.Tensor:
            of_input = backward(of_output)
            return (of_input, [None for _ in variables]) if variables else of_input

        return forward(tensor), gradient

    return function
