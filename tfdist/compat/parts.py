"""Keras' optimizers and variables of which each replica has a part only."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, WRITTEN, overrides, touch
from tfdist.compat.sharded_weights import stored
from tfdist.structures import Structure

_BASE = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_TENSORFLOW = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_CLIP = touch(
    *(_BASE, "_clip_gradients", REPLACED, "self", "grads"),
    why="a gradient of which each replica has a part is clipped by the norm of all parts together",
    versions=KERAS,
    instead="a public hook for clipping",
)
_CLIP_ONE = touch(
    *(_TENSORFLOW, "_clip_by_norm", READ),
    why="a subclass that clips in a way of its own may look at whole gradients, and would not be "
    "asked",
    versions=KERAS,
    instead="a public hook for clipping",
)
_ADD = touch(
    *(_TENSORFLOW, "add_variable_from_reference", REPLACED, "self", "reference_variable"),
    why="tells which of an optimizer's variables belong to which trainable variable. They are "
    "saved as if they had been made for the whole variable",
    versions=KERAS,
    instead="a public link from an optimizer's variable to the trainable variable",
)
_VALUE = touch(
    *("keras.src.backend.tensorflow.core:Variable", "_value", WRITTEN),
    why="a variable that is empty at times is made in another way than Keras makes it",
    versions=KERAS,
    instead="a Keras variable that may be made for a `tf.Variable` of unknown shape",
)
_NAME = touch(
    *("keras.src.backend.tensorflow.core:Variable", "_name", WRITTEN),
    why="Keras' TensorFlow backend updates `tf.Variable`s, whose names have the scopes of the "
    "layers. A rule by name must look at such a name of a part too",
    versions=KERAS,
    instead="rules of optimizers by the path of a variable",
)

_thread = threading.local()

Clip = Callable[[keras.optimizers.Optimizer, list], list]


@overrides(
    "_initialize",
    why="a part needs memory during an update only, so the variable is empty at other times",
    versions=KERAS,
    instead="a Keras variable that may be made for a `tf.Variable` of unknown shape",
)
class PartVariable(keras.Variable):
    """A part of `whole`; for an optimizer that finds its state by variable it is the whole one.

    It is empty until a value is assigned, and again after `clear`.

    Args:
        shape: of the part.
        whole: the variable that the part is of.
    """

    def __init__(self, shape: Sequence[int], whole: keras.Variable):
        *scopes, name = whole.path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            super().__init__("zeros", shape=tuple(shape), dtype=whole.dtype, name=name)
        self.whole = whole

    def _initialize(self, value: Structure) -> None:
        del value
        rest = self.shape[1:]
        empty = tf.zeros([0, *rest], self.dtype)
        _VALUE.write(self, tf.Variable(empty, shape=[None, *rest], name=self.name))

    def clear(self, index: int) -> None:
        """Frees the memory.

        Args:
            index: the number of the running replica among those of this process.
        """
        copies = tf.distribute.get_strategy().experimental_local_results(self.value)
        copies[index].assign(tf.zeros([0, *self.shape[1:]], self.dtype))


class StoredPart(PartVariable):
    """The part that a weight in parts keeps, as a variable of the shape of the part."""

    def _initialize(self, value: Structure) -> None:
        del value

    def __init__(self, shape: Sequence[int], whole: keras.Variable):
        super().__init__(shape, whole)
        _VALUE.write(self, stored(whole))

    def clear(self, index: int) -> None:
        """Keeps the part."""


def seen_by_updates(variable: keras.Variable) -> keras.Variable | tf.Variable:
    """What updates and weight decay are given in place of a variable, by whose name rules may go.

    It is the `tf.Variable`, as in Keras' TensorFlow backend: "norm/gamma:0", where the Keras
    variable is only called "gamma". A part is given as one that has the name of the whole.
    """
    if not isinstance(variable, PartVariable):
        return variable.value
    seen = copy.copy(variable)
    _NAME.write(seen, stored(variable.whole).name)
    return seen


@dataclasses.dataclass(frozen=True)
class Slot:
    """A variable that an optimizer has made for a trainable one.

    Attributes:
        of: the trainable variable.
        variable: the optimizer's variable.
    """

    of: keras.Variable
    variable: keras.Variable


@contextlib.contextmanager
def recording_slots(made: Callable[[Slot], None] = lambda slot: None) -> Iterator[list[Slot]]:
    """In this thread, the list gets what optimizers make for trainable variables.

    Args:
        made: is called with each of them, at once.
    """
    found: list[Slot] = []
    _thread.slots, _thread.made = found, made
    try:
        yield found
    finally:
        _thread.slots = _thread.made = None


@contextlib.contextmanager
def clipping_by(clip: Clip) -> Iterator[None]:
    """In this thread, Keras optimizers clip by `clip(optimizer, gradients)`."""
    _thread.clip = clip
    try:
        yield
    finally:
        _thread.clip = None


def leave_clipping_out(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets one optimizer take gradients as given; its class must not clip in a way of its own."""
    _CLIP.write(optimizer, list)


def own_clipping(optimizer: keras.optimizers.Optimizer) -> str | None:
    """The method by which an optimizer's class clips in a way of its own, if it has one."""
    for method in (_CLIP, _CLIP_ONE):
        of_keras = getattr(keras.optimizers.Optimizer, method.name)
        if getattr(type(optimizer), method.name) is not of_keras:
            return method.name
    return None


def _clipped(original: Callable) -> Callable:
    @functools.wraps(original)
    def _clip_gradients(self: keras.optimizers.Optimizer, grads: Structure) -> Any:
        clip = getattr(_thread, "clip", None)
        return original(self, grads) if clip is None else clip(self, list(grads))

    return _clip_gradients


def _recorded(original: Callable) -> Callable:
    @functools.wraps(original)
    def add_variable_from_reference(
        self: keras.optimizers.Optimizer,
        reference_variable: keras.Variable,
        *args: Structure,
        **kwargs: Structure,
    ) -> Any:
        variable = original(self, reference_variable, *args, **kwargs)
        slots = getattr(_thread, "slots", None)
        if slots is not None:
            slots.append(Slot(reference_variable, variable))
            _thread.made(slots[-1])
        return variable

    return add_variable_from_reference


def install() -> None:
    """Lets optimizers clip parts of gradients, and tell what they make for which variable."""
    _CLIP.replace(_clipped)
    _ADD.replace(_recorded)
