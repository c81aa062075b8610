"""Small variables are updated together: Adam has some 40 operations for each variable.

On a parameter server with many small variables, the time of an update is that of starting
operations, not of computing. Horizontal fusion helps as in the fused optimizers of NVIDIA Apex: the
same arithmetic, on the values of all small variables in one vector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.partitions import is_small
from tfdist.structures import Gradient

ELEMENTWISE = frozenset(
    {
        keras.optimizers.SGD,
        keras.optimizers.RMSprop,
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adamax,
        keras.optimizers.Adagrad,
        keras.optimizers.Adadelta,
        keras.optimizers.Ftrl,
        keras.optimizers.Lion,
    }
)
"""Keras' optimizers whose `update_step` treats each element for itself. A subclass may not."""

Slots = list[list[keras.Variable]]
Found: TypeAlias = "compat.OneOfMany | tf.Tensor"


class _Scope(keras.StatelessScope):
    """In this context, an optimizer finds vectors in the place of its slots.

    Args:
        values: what it finds, by the ids of Keras variables.
    """

    def __init__(self, values: dict[int, Found]):
        super().__init__(initialize_variables=False)
        self._values = values

    def get_current_value(self, variable: keras.Variable) -> Found | None:
        """The vector or number in the place of a variable; None for any other variable."""
        return self._values.get(id(variable))

    def add_update(self, update: tuple) -> None:
        """Refuses what no optimizer of `ELEMENTWISE` does, which would be lost here."""
        raise RuntimeError(f"The update of a variable has assigned {update[0].path}")


@contextlib.contextmanager
def applying(factor: tf.Tensor) -> Iterator[None]:
    """In this thread, optimizers update small variables together.

    Args:
        factor: what they multiply their learning rate by.
    """
    with compat.scaled_learning_rate(factor), compat.updating_first(update_together):
        yield


def update_together(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[Gradient],
    variables: list[keras.Variable],
    rate: tf.Tensor | float,
) -> tuple[list[Gradient], list[keras.Variable]]:
    """Updates the small variables of each device together. Returns what is left to update.

    Args:
        optimizer: the optimizer; one that is not in `ELEMENTWISE` is left all variables.
        gradients: clipped gradients, one per variable.
        variables: some of those for which the optimizer was built.
        rate: the learning rate.
    """
    is_own = type(optimizer) in ELEMENTWISE and "update_step" not in vars(optimizer)
    slots = _slots(optimizer) if is_own else []
    if not slots:
        return gradients, variables
    places = {id(v): place for place, v in enumerate(compat.variables_to_build(optimizer))}
    groups: dict[tuple[str, str], list[int]] = {}
    for at, (gradient, variable) in enumerate(zip(gradients, variables)):
        if id(variable) in places and _is_like(gradient, variable) and is_small(variable):
            groups.setdefault((variable.value.device, variable.dtype), []).append(at)
    groups = {key: group for key, group in groups.items() if len(group) > 1}
    for (device, _), group in groups.items():
        here = [variables[at] for at in group]
        of_here = [[slot[places[id(variable)]] for variable in here] for slot in slots]
        with tf.device(device):
            _update(optimizer, [gradients[at] for at in group], here, of_here, rate)
    done = {at for group in groups.values() for at in group}
    left = [at for at in range(len(variables)) if at not in done]
    return [gradients[at] for at in left], [variables[at] for at in left]


def _is_like(gradient: Gradient, variable: keras.Variable) -> bool:
    is_dense = isinstance(gradient, tf.Tensor)
    return is_dense and (gradient.shape, gradient.dtype) == (variable.shape, variable.dtype)


def _slots(optimizer: keras.optimizers.Optimizer) -> Slots:
    """The optimizer's lists with one variable of its state for each variable that it updates."""
    shapes = [tuple(variable.shape) for variable in compat.variables_to_build(optimizer)]
    own = {id(variable) for variable in optimizer.variables}
    lists = [value for value in vars(optimizer).values() if isinstance(value, list)]
    return [
        slot
        for slot in lists
        if len(slot) == len(shapes)
        and all(id(v) in own and tuple(v.shape) == shape for v, shape in zip(slot, shapes))
    ]


def _update(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    slots: Slots,
    rate: tf.Tensor | float,
) -> None:
    together = compat.OneOfMany(optimizer, variables)
    vectors = [compat.OneOfMany(optimizer, slot) for slot in slots]
    found: dict[int, Found] = {id(slot[0]): vector for slot, vector in zip(slots, vectors)}
    found[id(optimizer.iterations)] = tf.convert_to_tensor(optimizer.iterations.value)
    gradient = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
    with _Scope(found):
        optimizer.update_step(gradient, together, rate)
    for vector in (together, *vectors):
        vector.write()
