"""Lets a replica update its own copy of the variables, without meeting the other replicas."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.graphs import operations_so_far
from tfdist.compat.parts import seen_by_updates
from tfdist.compat.registry import BOTH, READ, REPLACED, touch
from tfdist.structures import Gradient, Structure

_BASE = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_TENSORFLOW = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_ALONE: dict[str, str] = {
    "why": "Keras' TensorFlow backend updates all replicas at once, where they meet. With local "
    "steps each replica decides by itself whether to update (it may have no samples, or an "
    "overflow). The base class updates only the running replica's copy",
    "versions": BOTH,
    "instead": "an optimizer that updates in replica context",
}
_STEP = ("self", "grads", "trainable_variables", "learning_rate")
_UPDATE = touch(_TENSORFLOW, "_backend_update_step", REPLACED, *_STEP, **_ALONE)
_UPDATE_HERE = touch(_BASE, "_backend_update_step", READ, *_STEP, **_ALONE)
_DECAY = touch(_TENSORFLOW, "_apply_weight_decay", REPLACED, "self", "variables", **_ALONE)
_DECAY_HERE = touch(_BASE, "_apply_weight_decay", READ, "self", "variables", **_ALONE)
_ASSIGN = touch(
    *("keras.src.backend.tensorflow.core:Variable", "_direct_assign", REPLACED, "self", "value"),
    why="with local steps each replica counts its own updates, but Keras' counter is one that all "
    "replicas set together",
    versions=BOTH,
    instead="a counter of updates that each replica may have for itself",
)
_AVERAGES = touch(
    *(_BASE, "_model_variables_moving_average", READ),
    why="moving averages of the weights that replicas have computed apart are averaged with the "
    "weights",
    versions=BOTH,
    instead="a public attribute for the averages of `use_ema`",
)

_updating = threading.local()


@contextlib.contextmanager
def updating_own_copy(index: int, one_by_one: bool = False) -> Iterator[None]:
    """In this thread, Keras optimizers update only the running replica's copies of variables.

    Args:
        index: the number of the running replica among those of this process.
        one_by_one: whether the update of a variable waits for that of the variable before it, so
            that the intermediate results of one are in memory. Only in functions.
    """
    _updating.index, _updating.one_by_one = index, one_by_one
    try:
        yield
    finally:
        _updating.index, _updating.one_by_one = None, False


def moving_averages(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The moving averages of the weights that a built `optimizer` keeps (`use_ema`).

    Args:
        optimizer: any optimizer; a `MultiOptimizer` has those of its parts.
    """
    found = []
    for part in (optimizer, *getattr(optimizer, "optimizers", ())):
        if getattr(part, "use_ema", False):
            found += [average for average in _AVERAGES.of(part) if average is not None]
    return found


def _index() -> int | None:
    return getattr(_updating, "index", None)


def _each_after_the_last(gradients: Iterable[Gradient]) -> Iterator[Gradient]:
    """The gradients; each is there when what Keras has made with the one before it is done."""
    graph = tf.compat.v1.get_default_graph()
    done: list[tf.Operation] = []
    for gradient in gradients:
        with tf.control_dependencies(done):
            gradient = tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
        before = operations_so_far()
        yield gradient
        done = [o for o in graph.get_operations()[before:] if o.type.startswith("Assign")]


def _updated_here(original: Callable) -> Callable:
    @functools.wraps(original)
    def _backend_update_step(
        self: keras.optimizers.Optimizer,
        grads: Structure,
        trainable_variables: Structure,
        learning_rate: Structure,
    ) -> None:
        if _index() is None:
            original(self, grads, trainable_variables, learning_rate)
            return
        if getattr(_updating, "one_by_one", False) and not tf.executing_eagerly():
            grads = _each_after_the_last(grads)
        variables = [seen_by_updates(variable) for variable in trainable_variables]
        _UPDATE_HERE.get()(self, grads, variables, learning_rate)

    return _backend_update_step


def _decayed_here(original: Callable) -> Callable:
    @functools.wraps(original)
    def _apply_weight_decay(self: keras.optimizers.Optimizer, variables: Structure) -> None:
        if _index() is None:
            original(self, variables)
        else:
            _DECAY_HERE.get()(self, [seen_by_updates(variable) for variable in variables])

    return _apply_weight_decay


def _assigned_here(original: Callable) -> Callable:
    @functools.wraps(original)
    def _direct_assign(self: keras.Variable, value: tf.Tensor) -> Any:
        index = _index()
        if index is None:
            return original(self, value)
        copies = tf.distribute.get_strategy().experimental_local_results(self.value)
        return copies[index].assign(tf.cast(value, self.value.dtype))

    return _direct_assign


def install() -> None:
    """Lets optimizers update one replica's copies."""
    _UPDATE.replace(_updated_here)
    _DECAY.replace(_decayed_here)
    _ASSIGN.replace(_assigned_here)
