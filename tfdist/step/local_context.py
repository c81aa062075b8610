"""What belongs to a replica that trains apart: its copies of variables, and its operations."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import static_id
from tfdist.structures import Structure


def index_of_replica() -> int:
    """The number of the running replica among those of this process; in replica context."""
    return static_id() % len(tf.distribute.get_strategy().extended.worker_devices)


def after(strategy: tf.distribute.Strategy, ready: Structure) -> contextlib.AbstractContextManager:
    """In this context operations run after what each replica has in `ready`."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(list(strategy.experimental_local_results(ready)))


def check_copies(variables: Sequence[keras.Variable]) -> None:
    """Raises ValueError for variables that replicas can only set together."""
    joint = [
        v.path for v in variables if compat.stored(v).aggregation != tf.VariableAggregation.NONE
    ]
    if joint:
        raise ValueError(
            "With `local` and `sharding` each replica sets its own copy of a weight. Make these "
            f'weights without `aggregation`, or with `aggregation="none"`. Received: {joint}'
        )
