"""How values are read that belong together, all as they were after the same update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdist.parameter_server.contracts import Guard


class Reader:
    """Reads variables on the servers, where the values stay.

    Reading copies nothing: a variable is copied when it changes while its value is in use.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[str, int, bool], Callable] = {}

    def forget(self) -> None:
        """Forgets what was traced: the variables have moved, or are no longer in use."""
        self._functions.clear()

    def read(
        self, variables: Mapping[str, Sequence[tf.Variable]], made: int, guard: Guard | None
    ) -> tuple[dict[str, list[tf.Tensor]], int | None]:
        """Reads all variables.

        Args:
            variables: the variables by device.
            made: a number that changes when there are other variables.
            guard: what keeps workers from making updates meanwhile; None if they make none.

        Returns:
            The values by device, and the number of updates that the guard tells of.
        """
        values, updates = {}, None
        for device, of_device in variables.items():
            key = device, made, guard is not None
            if key not in self._functions:
                function = tf.function(_reading(of_device, guard), autograph=False)
                with tf.device(None):
                    self._functions[key] = function.get_concrete_function()
            with tf.device(device):
                values[device], version = self._functions[key]()
            updates = None if version is None else int(version.numpy())
        return values, updates


def _reading(variables: Sequence[tf.Variable], guard: Guard | None) -> Callable:
    def read() -> list[tf.Tensor]:
        return [
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            for variable in variables
        ]

    return (lambda: (read(), None)) if guard is None else (lambda: guard.reading(read))
