"""Functions of TensorFlow that any worker can run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.structures import Structure


class Traced:
    """A function that is traced once for each type of arguments, whatever the device.

    It runs on the worker of the present device, and is called by that worker's thread.

    Args:
        function: takes structures of tensors. The values of bools and ints are known when it is
            traced.
    """

    def __init__(self, function: Callable):
        self._given = function
        self._begin()
        self._traced: dict[tuple, tf.types.experimental.ConcreteFunction] = {}
        self._lock = threading.Lock()

    def prepare(self, *arguments: Structure) -> tf.types.experimental.ConcreteFunction:
        """The traced function for these arguments, or for arguments of these `tf.TypeSpec`s."""
        types = [_type_of(a) for a in tf.nest.flatten(arguments, expand_composites=False)]
        key = (*types, *(argument is None for argument in arguments))
        with self._lock, tf.device(None):
            if key not in self._traced:
                try:
                    self._traced[key] = self._function.get_concrete_function(*arguments)
                except BaseException:
                    self._begin()  # TensorFlow cannot use the function of a failed trace again
                    raise
            return self._traced[key]

    def _begin(self) -> None:
        self._function = tf.function(self._given, autograph=False, reduce_retracing=True)

    def __call__(self, *arguments: Structure) -> Structure:
        """Runs the function on the present device."""
        return self.prepare(*arguments)(*arguments)


def _type_of(leaf: Structure) -> tf.TypeSpec | int:
    """What a function is traced for: the type of a tensor or spec, or a plain value."""
    if isinstance(leaf, (tf.TypeSpec, int)):
        return leaf
    return tf.type_spec_from_value(leaf)
