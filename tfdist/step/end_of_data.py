"""The step that finds no data must do the same on all replicas as on one device.

Where the length of the data is not known, Keras starts a step, and TensorFlow stops the step when
there is no batch. On one device, everything that needs no batch has happened by then: the optimizer
has counted an update, and layers have drawn seeds. Several replicas would each be stopped at a
different point, and would differ from then on. So nothing in a replica's step happens before its
batch is there. After a step that found no batch, counters and seeds move on as on one device.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.structures import Structure

_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


class _Run(NamedTuple):
    """A run of Keras that is under way."""

    model: keras.Model | None
    step: str
    number: int


_NO_RUN = _Run(None, "", -1)
_numbers = itertools.count()
_runs = threading.local()
_advances: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def nothing_without(batch: Structure) -> contextlib.AbstractContextManager:
    """In this context, traced operations run only after the tensors of `batch` exist."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)])


def note(model: keras.Model, step: str, advances: list[Callable[[], Any]]) -> None:
    """Notes what moves on in each step of `model`: the `advances` of one replica."""
    _advances.setdefault(model, {})[step] = advances


@contextlib.contextmanager
def of_run(model: keras.Model, name: str, arguments: Any) -> Iterator[None]:
    """Surrounds a run of `model`: "fit", "evaluate" or "predict" by `name`; runs may be nested."""
    outer = _innermost()
    _runs.innermost = _Run(model, _STEPS[name], next(_numbers))
    try:
        yield
    finally:
        _runs.innermost = outer


def running_step(model: keras.Model) -> str | None:
    """The name of the innermost run's step; None if that is not a run of `model`."""
    innermost = _innermost()
    return innermost.step if innermost.model is model else None


def run_of_fit() -> int | None:
    """The number of the innermost run, which no other run has; None if that is no `fit`."""
    innermost = _innermost()
    return innermost.number if innermost.step == _STEPS["fit"] else None


def _innermost() -> _Run:
    return getattr(_runs, "innermost", _NO_RUN)


def count(counter: keras.Variable) -> None:
    """Adds one to a counter of updates; replicas that train apart have each counted their own."""
    for copy in getattr(counter.value, "values", (counter.value,)):
        copy.assign_add(1)


def advance() -> None:
    """Moves on what a step of the innermost run moves on, after a step that found no data."""
    model, step, _ = _innermost()
    # An eager step does not begin without a batch, nor does a function that XLA has compiled.
    if model is not None and not model.run_eagerly and not model.jit_compile:
        for move_on in _advances.get(model, {}).get(step, ()):
            move_on()
