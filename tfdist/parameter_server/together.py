"""Small variables are updated together: Adam has some 40 operations for each variable.

On a parameter server with many small variables, the time of an update is that of starting
operations, not of computing. Horizontal fusion helps as in the fused optimizers of NVIDIA Apex: the
same arithmetic, on the values of all small variables in one vector.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.flat import NONE, FlatVariables, Members
from tfdist.parameter_server.packing import places_of
from tfdist.parameter_server.partitions import is_small, parts_of
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

Slots = list[Members]
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


class Group(NamedTuple):
    """Small variables of one device and dtype.

    Attributes:
        variables: the variables.
        slots: of each list of the optimizer's state, the variables for them.
    """

    variables: Members
    slots: Slots


Vectors = Mapping[tuple[int, ...], tf.Tensor]
"""Vectors of gradients, by the ids of the gradients that they were divided into."""


def vectors_of(
    packed: Mapping[str, Gradient], by_place: Mapping[int, Gradient] | Sequence[Gradient | None]
) -> dict[tuple[int, ...], tf.Tensor]:
    """The vectors among packed gradients, by the ids of what they were divided into.

    Args:
        packed: the gradients by key.
        by_place: the gradients by the number of the variable, as they were divided. A variable may
            have gradients in several keys, which were added; their vectors are left out.
    """
    keys = collections.Counter(at for key in packed for at in places_of(key))
    several = [(places_of(key), vector) for key, vector in packed.items() if "," in key]
    return {
        tuple(id(by_place[at]) for at in places): vector
        for places, vector in several
        if all(keys[at] == 1 for at in places)
    }


@contextlib.contextmanager
def applying(
    factor: tf.Tensor, flat: FlatVariables = NONE, vectors: Vectors | None = None
) -> Iterator[None]:
    """In this thread, optimizers update small variables together.

    Args:
        factor: what they multiply their learning rate by.
        flat: flat variables that are in use.
        vectors: see `Vectors`.
    """
    update = functools.partial(update_together, flat=flat, vectors=vectors or {})
    decay = functools.partial(decay_together, flat=flat)
    with compat.scaled_learning_rate(factor), compat.updating_first(update, decay):
        yield


def groups_of(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> list[Group]:
    """Those among `variables` that the optimizer can update together: two at least in a group.

    Args:
        optimizer: the optimizer, which was built; of one that is not in `ELEMENTWISE` there is no
            group.
        variables: some of those for which the optimizer was built; others are left out.
    """
    if type(optimizer) not in ELEMENTWISE or "update_step" in vars(optimizer):
        return []
    slots = _slots(optimizer)
    if not (slots or is_plain(optimizer)):
        return []
    places = {id(v): place for place, v in enumerate(compat.variables_to_build(optimizer))}
    found: dict[tuple[str, str], Members] = {}
    for variable in variables:
        if id(variable) in places and is_small(variable):
            found.setdefault((variable.value.device, variable.dtype), []).append(variable)
    return [
        Group(here, [[slot[places[id(variable)]] for variable in here] for slot in slots])
        for here in found.values()
        if len(here) > 1
    ]


def update_together(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[Gradient],
    variables: list[keras.Variable],
    rate: tf.Tensor | float,
    flat: FlatVariables = NONE,
    vectors: Vectors | None = None,
) -> tuple[list[Gradient], list[keras.Variable]]:
    """Updates the small variables of each device together. Returns what is left to update.

    Args:
        optimizer: the optimizer; one that is not in `ELEMENTWISE` is left all variables.
        gradients: clipped gradients, one per variable.
        variables: some of those for which the optimizer was built.
        rate: the learning rate.
        flat: as for `applying`.
        vectors: as for `applying`. What was clipped is in none of them.
    """
    of = {id(v): g for g, v in zip(gradients, variables) if _is_like(g, v)}
    groups = groups_of(optimizer, [variable for variable in variables if id(variable) in of])
    if is_plain(optimizer):  # one operation for each variable is not worth joining them
        groups = [group for group in groups if flat.find(group.variables) is not None]
    for group in groups:
        here = [of[id(variable)] for variable in group.variables]
        with tf.device(group.variables[0].value.device):
            vector = (vectors or {}).get(tuple(map(id, here)))
            if vector is None:
                vector = tf.concat([tf.reshape(gradient, [-1]) for gradient in here], axis=0)
            _update(optimizer, vector, group, rate, flat)
    done = {id(variable) for group in groups for variable in group.variables}
    left = [at for at, variable in enumerate(variables) if id(variable) not in done]
    return [gradients[at] for at in left], [variables[at] for at in left]


def decay_together(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable], flat: FlatVariables
) -> list[keras.Variable]:
    """Lets flat variables decay, by the rule of Keras. Returns what is left to decay.

    Args:
        optimizer: the optimizer, which has a weight decay.
        variables: the variables.
        flat: flat variables that are in use.
    """
    done: set[int] = set()
    for one in flat.among(variables):
        with tf.device(one.vector.device):
            value = one.vector.read_value()
            rate = tf.cast(optimizer.learning_rate, value.dtype)
            decay = value * tf.cast(optimizer.weight_decay, value.dtype) * rate
            decays = [compat.decays(optimizer, member) for member in one.members]
            if not all(decays):
                decay *= tf.repeat(tf.cast(decays, value.dtype), one.sizes)
            one.vector.assign_sub(decay, read_value=False)
        done.update(map(id, one.members))
    return [variable for variable in variables if id(variable) not in done]


def is_plain(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer keeps nothing for each variable."""
    return type(optimizer) is keras.optimizers.SGD and not optimizer.momentum


def lists_to_flatten(optimizer: keras.optimizers.Optimizer) -> list[Members]:
    """The variables of each flat variable that an optimizer probably has a use for.

    Whether the optimizer or anything else needs the variables themselves is known for sure when an
    update has been traced.
    """
    if not optimizer.built or type(optimizer) not in ELEMENTWISE:
        return []
    variables = compat.variables_to_build(optimizer)
    if optimizer.use_ema or any(variable.constraint is not None for variable in variables):
        return []
    whole = [v for v in variables if v.trainable and parts_of(v) == [v]]
    groups = groups_of(optimizer, whole)
    return [members for group in groups for members in (group.variables, *group.slots)]


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
    gradient: tf.Tensor,
    group: Group,
    rate: tf.Tensor | float,
    flat: FlatVariables,
) -> None:
    every = [group.variables, *group.slots]
    flat.note_updated(every)
    together, *slots = [compat.OneOfMany(optimizer, of, flat.find(of)) for of in every]
    found: dict[int, Found] = {id(of[0]): slot for of, slot in zip(group.slots, slots)}
    found[id(optimizer.iterations)] = tf.convert_to_tensor(optimizer.iterations.value)
    with _Scope(found):
        optimizer.update_step(gradient, together, rate)
    for one in (together, *slots):
        one.write()
