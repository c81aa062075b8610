"""What an optimizer sees while it updates the variables of one of several parameter servers."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief


class ServerScope(keras.StatelessScope):
    """In this context, Keras variables on other servers are numbers that were read beforehand.

    Variables on this server are read and changed as always.

    Args:
        device: the server.
        numbers: the values of variables on other servers, by the ids of the variables. What they
            are assigned is seen only here, and in other scopes with the same dictionary.
    """

    def __init__(self, device: str, numbers: dict[int, tf.Tensor]):
        super().__init__(initialize_variables=False)
        self._device = device
        self._numbers = numbers

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """The value of a variable on another server; None for a variable on this one."""
        if self._is_here(variable):
            return None
        self._check(variable)
        return self._numbers[id(variable)]

    def add_update(self, update: tuple) -> None:
        """Assigns a value to a variable."""
        variable, value = update
        if self._is_here(variable):
            with compat.outside_stateless_scope():
                variable.assign(value)
            return
        self._check(variable)
        self._numbers[id(variable)] = tf.cast(value, variable.dtype)

    def _check(self, variable: keras.Variable) -> None:
        if id(variable) not in self._numbers:
            raise NeedsChief(
                f"the update of a variable needs {variable.path}, which is on another parameter "
                "server"
            )

    def _is_here(self, variable: keras.Variable) -> bool:
        with compat.outside_stateless_scope():
            value = variable.value
        is_whole = not isinstance(value, compat.PartitionedVariable)
        return is_whole and value.device == self._device
