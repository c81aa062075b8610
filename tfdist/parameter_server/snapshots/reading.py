"""How values are read that belong together, all as they were after the same update."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdist.parameter_server.contracts import Guard


class Reader:
    """Reads variables on the servers, where the values stay.

    Reading copies nothing: a variable is copied when it changes while its value is in use.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[str, int], Callable] = {}

    def forget(self) -> None:
        """Forgets what was traced: the variables have moved, or are no longer in use."""
        self._functions.clear()

    def read(
        self, variables: Mapping[str, Sequence[tf.Variable]], made: int
    ) -> dict[str, list[tf.Tensor]]:
        """Reads all variables, which nobody changes meanwhile.

        Args:
            variables: the variables by device.
            made: a number that changes when there are other variables.

        Returns:
            The values by device.
        """
        values = {}
        for device, of_device in variables.items():
            key = device, made
            if key not in self._functions:
                function = tf.function(functools.partial(_read, of_device), autograph=False)
                with tf.device(None):
                    self._functions[key] = function.get_concrete_function()
            with tf.device(device):
                values[device] = self._functions[key]()
        return values


def at_rest(version: int, guard: Guard | None) -> contextlib.AbstractContextManager[int]:
    """In this context nobody changes the weights. It gives the number of updates so far.

    Args:
        version: the number where only the chief makes updates.
        guard: what keeps workers from making updates; None if they make none.
    """
    return contextlib.nullcontext(version) if guard is None else guard.at_rest()


def _read(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return [
        tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        for variable in variables
    ]
