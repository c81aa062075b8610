"""The scope that lets a step run without changing any variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from tfdist.parameter_server import partitions
from tfdist.step import collection


class StepScope(keras.StatelessScope):
    """Keeps what the step assigns to variables, and notes which variables these are.

    Args:
        state_mapping: values, by variable.
        parts: the values of all parts of the weights, by the id of the weight.
        devices: the devices of these parts, by the id of the weight.
        collected: the gradients that the optimizers were given.
    """

    def __init__(
        self,
        state_mapping: Sequence[tuple],
        parts: Mapping[int, list[tf.Tensor]],
        devices: Mapping[int, list[str]],
        collected: collection.Collected,
    ):
        super().__init__(state_mapping, collect_losses=True)
        self.updated: dict[int, keras.Variable] = {}
        self.read_late: set[str] = set()
        self.by_rows: set[int] = set()
        self._parts = parts
        self._devices = devices
        self._collected = collected

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """The value in the step. Notes if an optimizer should already have changed this value.

        The parts are joined at each reading, so that the tape that is active then sees the reading.
        """
        self._note_reading(variable)
        if id(variable) in self._parts and id(variable) not in self.updated:
            return partitions.whole(self._parts[id(variable)])
        return super().get_current_value(variable)

    def rows(self, variable: keras.Variable, ids: tf.Tensor) -> tf.Tensor | None:
        """Only these rows of a weight; None if the weight should be read whole.

        Args:
            variable: the weight.
            ids: the numbers of the rows; negative numbers count from the end.
        """
        if id(variable) not in self._parts or id(variable) in self.updated:
            return None
        if partitions.is_small(variable):
            return None
        self._note_reading(variable)
        self.by_rows.add(id(variable))
        found = partitions.lookup(self._parts[id(variable)], self._devices[id(variable)], ids)
        return tf.cast(found, variable.dtype)

    def _note_reading(self, variable: keras.Variable) -> None:
        for optimizer, gradients in self._collected.applied:
            for other, gradient in zip(optimizer.built_for, gradients):
                if other is variable and gradient is not None:
                    self.read_late.add(variable.path)

    def add_update(self, update: tuple) -> None:
        """Keeps the new value instead of assigning it."""
        self.updated[id(update[0])] = update[0]
        super().add_update(update)
