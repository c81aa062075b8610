"""The numbers of an optimizer, which it would read again for each variable."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfdist import compat


class ReadOnce(keras.StatelessScope):
    """In this context, Keras variables are read once, at its beginning, until they change.

    An optimizer computes some numbers from the count of updates, for each variable that it updates.
    Of one reading, TensorFlow computes them once, as it joins equal operations.

    Args:
        variables: variables that are assigned by Keras only. Other variables are read as always.
    """

    def __init__(self, variables: Iterable[keras.Variable]):
        super().__init__(initialize_variables=False)
        self._values = {id(variable): variable.value.read_value() for variable in variables}

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """What was read; None for a variable that is read as always."""
        return self._values.get(id(variable))

    def add_update(self, update: tuple) -> None:
        """Assigns a value to a variable, and forgets the value that was read."""
        variable, value = update
        with compat.outside_stateless_scope():
            variable.assign(value)
        self._values.pop(id(variable), None)
