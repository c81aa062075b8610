"""What belongs to a replica that trains apart: its copies of variables, and its operations."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import static_id
from tfdist.local.choices import LocalSteps
from tfdist.structures import Structure

# Not in every Keras.
_SCHEDULE_FREE = getattr(keras.optimizers, "ScheduleFreeAdamW", ())


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


def check_slots(optimizer: keras.optimizers.Optimizer, local: LocalSteps) -> None:
    """Raises ValueError for an optimizer that keeps weights in its slots.

    Each replica has slots of its own, which replicas do not average. That is right for moments of
    gradients. ScheduleFreeAdamW's `momentum` is a sequence of weights z, and the model's weights
    are (1 - beta_1) z + beta_1 x. If only these meet, z stays apart for ever, and what was to be
    the average x takes up the differences. An outer step would move the model's weights without z.

    Args:
        optimizer: any optimizer, below any loss scaling; a `MultiOptimizer` has parts.
        local: the user's choice.
    """
    for part in (optimizer, *getattr(optimizer, "optimizers", ())):
        if isinstance(part, _SCHEDULE_FREE):
            raise ValueError(
                "With `local` each replica keeps its optimizer's state for itself, but the state "
                "of ScheduleFreeAdamW is a sequence of weights, of which the model's weights are "
                "made: replicas would never meet there. Take another optimizer, such as AdamW, or "
                f"leave `local` out. Received: optimizer={type(part).__name__}, local={local}"
            )
