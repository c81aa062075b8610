"""A variable that lives as long as the call of a function that makes it."""

from __future__ import annotations

import tensorflow as tf

from tfdist.compat.registry import READ, TENSORFLOW, touch

_NAME = touch(
    *("tensorflow.python.eager.context", "anonymous_name", READ),
    why="an operation makes a new variable in each call if the variable has this name, and "
    "TensorFlow frees it when the call ends, also if that fails. A `tf.Variable` cannot be made "
    "in each call, and TensorFlow does not free a `tf.raw_ops.StackV2` that a function makes",
    versions=TENSORFLOW,
    instead="a public operation that makes a variable without a name",
)


class CallVariable:
    """A variable of the graph that is being traced, on the present device.

    Args:
        value: its first value.
    """

    def __init__(self, value: tf.Tensor):
        self._dtype = value.dtype
        handle = tf.raw_ops.VarHandleOp(
            dtype=value.dtype, shape=value.shape, shared_name=_NAME.get()()
        )
        assigned = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        with tf.control_dependencies([assigned]):
            self._handle = tf.identity(handle)

    def read(self) -> tf.Tensor:
        """The value, on the variable's device."""
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)

    def assign(self, value: tf.Tensor) -> None:
        """Assigns a value, on the variable's device."""
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)
