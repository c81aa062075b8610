"""The step that finds no data: it must do the same on all replicas, and what one device does.

Where the length of the data is not known, Keras starts a step, and TensorFlow stops it when there
is no batch. On one device what needs no batch has happened by then: the optimizer has counted an
update, layers have drawn seeds. On several, each replica would be stopped at a point of its own,
and they would differ from then on. So nothing in a replica's step happens before its batch is
there, and after the step that found none everything moves on as on one device.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.structures import Structure

_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}

_runs = threading.local()
_advances: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def nothing_without(batch: Structure) -> contextlib.AbstractContextManager:
    """In this context, what is traced runs only after the tensors of `batch` exist."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)])


def note(model: keras.Model, step: str, advances: list[Callable[[], Any]]) -> None:
    """Notes what moves on in each step of `model`; `advances` is that of one replica."""
    _advances.setdefault(model, {})[step] = advances


@contextlib.contextmanager
def of_run(model: keras.Model, name: str, arguments: Any) -> Iterator[None]:
    """Surrounds `model.fit`, `evaluate` or `predict`, as `name` says; they may be nested."""
    outer = getattr(_runs, "innermost", (None, ""))
    _runs.innermost = (model, _STEPS[name])
    try:
        yield
    finally:
        _runs.innermost = outer


def running_step(model: keras.Model) -> str | None:
    """The name of the step that the innermost run takes; None where it is not a run of `model`."""
    innermost, step = getattr(_runs, "innermost", (None, ""))
    return step if innermost is model else None


def advance() -> None:
    """Moves on what a step without data would have moved on, in the innermost run."""
    model, step = getattr(_runs, "innermost", (None, ""))
    if model is not None and not model.run_eagerly:
        for move_on in _advances.get(model, {}).get(step, ()):
            move_on()
