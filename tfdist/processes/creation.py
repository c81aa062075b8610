"""Before a variable is made in a strategy's scope, the processes compare what they make.

The processes also compare initial values. Only values that differ have to travel. Zeros and ones,
the initial values of most optimizer variables, do not travel.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checksum import digest
from tfdist.engines.processes import Processes
from tfdist.processes.meeting import meet
from tfdist.structures import Structure

_UNKNOWN = "unknown"


def before_creating(processes: Processes, arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Called by all processes before each makes a variable.

    Args:
        processes: the processes.
        arguments: the arguments of TensorFlow's variable creators.

    Returns:
        The arguments, where a function for the initial value is replaced by the value; and whether
        the value has the same bits in all processes.

    Raises:
        ValueError: in all processes, when they make variables of different shapes or dtypes, when
            they give different values to a variable such as a learning rate, or when a process does
            something else.
    """
    given = arguments.get("initial_value")
    value = _value(given, arguments.get("dtype"))
    shape = _UNKNOWN if value is None else str(tuple(value.shape))
    dtype = str(arguments.get("dtype")) if value is None else value.dtype.name
    facts: dict[str, Any] = {"shape": shape, "dtype": dtype}
    if value is not None and not callable(given) and not arguments.get("trainable", True):
        if value.shape.rank == 0 and value.dtype.is_floating:
            facts["value"] = str(value.numpy())
    name = "/".join(filter(None, (tf.get_current_name_scope(), arguments.get("name"))))
    detail = f"{name or 'Variable'} with " + ", ".join(f"{k} {fact}" for k, fact in facts.items())
    bits = 0 if value is None else _bits(value)
    facts["dtype policy"] = keras.config.dtype_policy().name
    known = meet(processes, "makes the variable", facts, detail, bits)
    if value is None:
        return arguments, False
    return {**arguments, "initial_value": value}, len(set(known)) == 1


def _value(given: Structure, dtype: tf.DType | str | None) -> tf.Tensor | None:
    """The initial value; None where it is unknown, as in a function that is being traced."""
    if not tf.executing_eagerly():
        return None
    value = given() if callable(given) else given
    if isinstance(value, (tf.Tensor, np.ndarray, np.generic, bool, int, float, list, tuple)):
        return tf.convert_to_tensor(value, dtype)
    return None


def _bits(value: tf.Tensor) -> int:
    array = value.numpy()
    if value.dtype == tf.string:
        return digest(repr(np.asarray(array).tolist()).encode())
    # Read where it is: a copy would be one more value in memory.
    return digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
