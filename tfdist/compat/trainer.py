"""Keras' trainer: what happens around `compile`, runs, callbacks and results of steps."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, TENSORFLOW, WRITTEN, touch
from tfdist.structures import Structure

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"

_COMPILE = touch(
    *("keras.src.trainers.trainer:Trainer", "compile", REPLACED, "self"),
    why="the optimizer must be wrapped before anything loads its state or reads its attributes",
    versions=KERAS,
    instead='a public "compiled" event',
)


def hook_compile(hook: Callable[..., None]) -> None:
    """Makes `model.compile(...)` call `hook(model, compile, args, kwargs)` instead.

    `compile` is Keras' own method, bound.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def compile_with_hook(self: keras.Model, *args: Any, **kwargs: Any) -> None:
            hook(self, functools.partial(original, self), args, kwargs)

        return compile_with_hook

    _COMPILE.replace(make)


_STEP: dict[str, str] = {
    "why": "tells Keras' own steps from others: only these take the optimizer from the model. The "
    "model may also be a layer with this class mixed in",
    "versions": KERAS,
    "instead": "a public argument of `Strategy.run`",
}
_CLASS = touch("keras.src.trainers.trainer", "Trainer", READ, **_STEP)
_PREDICT = touch(_TRAINER, "make_predict_function", READ, "self", **_STEP)
_METHOD = touch(
    *("tensorflow.python.eager.polymorphic_function.tf_method_target", "TfMethodTarget", READ),
    why="a step may be a `tf.function`, which is bound to one of these instead of the model",
    versions=TENSORFLOW,
    instead=_STEP["instead"],
)
_PREDICT_STEP = "one_step_on_data"  # what `make_predict_function` hands to `Strategy.run`


@tf.autograph.experimental.do_not_convert
def keras_step(fn: Callable) -> tuple[keras.Model, str] | None:
    """The model and the step's name, if `fn` is what Keras' trainer passes to `Strategy.run`.

    For training and evaluation Keras wraps the model's bound `train_step` or `test_step` with
    `functools.wraps`. For `predict` it passes a closure over the model.

    Returns:
        `(model, name)` with name "train_step", "test_step" or "predict_step"; None for any other
        function.
    """
    fn = _unwrapped(fn)
    trainer = _CLASS.get()
    model = getattr(fn, "__self__", None)
    if isinstance(model, _METHOD.get()):  # the step is a `tf.function`
        model = model.target
    if isinstance(model, trainer):
        return (model, fn.__name__) if fn.__name__ in ("train_step", "test_step") else None
    if getattr(fn, "__name__", "") == _PREDICT_STEP:
        model = inspect.getclosurevars(fn).nonlocals.get("self")
        if isinstance(model, trainer):
            return model, "predict_step"
    return None


def step_of(model: keras.Model, name: str) -> Callable:
    """A function of a batch that `keras_step` takes for the step `name` of `model`."""
    if name != "predict_step":
        return getattr(model, name)
    self = model

    def one_step_on_data(data: Structure) -> Structure:
        return self.predict_step(data)

    return one_step_on_data


def _unwrapped(fn: Callable) -> Callable:
    while True:
        inner = getattr(fn, "__wrapped__", None) or getattr(fn, "python_function", None)
        if inner is None:
            return fn
        fn = inner


_END_OF_DATA = touch(
    *("keras.src.backend.tensorflow.trainer:TFEpochIterator", "catch_stop_iteration"),
    *(REPLACED, "self"),
    why="the step that finds no data left must have the same effects as on one device "
    "(step/end_of_data.py)",
    versions=KERAS,
    instead="a loop that always asks before it starts a step",
)


def hook_end_of_data(hook: Callable[[], None]) -> None:
    """Calls `hook()` when a step of Keras' loops found no batch because the data had ended.

    With `steps_per_execution` > 1 the hook is not called: Keras looks for data before each step.
    """

    def make(original: Callable) -> Callable:
        @contextlib.contextmanager
        def catch_stop_iteration(self: Any) -> Iterator[None]:
            with original(self):
                try:
                    yield
                except tf.errors.OutOfRangeError:
                    hook()
                    raise

        return catch_stop_iteration

    _END_OF_DATA.replace(make)


_CALLBACKS = "keras.src.callbacks.callback_list:CallbackList"
_SET_MODEL = touch(
    *(_CALLBACKS, "set_model", REPLACED, "self", "model"),
    why="processes must agree on what callbacks decide, and only one process writes files and "
    "shows progress",
    versions=KERAS,
    instead="a public hook for default callbacks",
)
_ASYNC = [
    touch(
        *(_CALLBACKS, name, WRITTEN),
        why="collective operations of callbacks must come in the same order in all processes, so "
        "in one thread",
        versions=KERAS,
        instead="a public option to call callbacks in the training thread",
    )
    for name in ("_async_train", "_async_test", "_async_predict")
]


def hook_callbacks(hook: Callable[[keras.callbacks.CallbackList, keras.Model], bool]) -> None:
    """Calls `hook(callback list, model)` before Keras gives the callbacks their model.

    If the hook returns True, Keras calls the callbacks in the training thread.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def set_model(self: keras.callbacks.CallbackList, model: keras.Model) -> None:
            if model and hook(self, model):
                for name in _ASYNC:
                    name.write(self, False)
            original(self, model)

        return set_model

    _SET_MODEL.replace(make)


_INITIAL_EPOCH = touch(
    *("keras.src.trainers.trainer:Trainer", "_initial_epoch", WRITTEN),
    why="with this attribute BackupAndRestore tells `fit` in which epoch to start, and all "
    "processes must agree on this epoch",
    versions=KERAS,
    instead="a public property",
)


def initial_epoch(model: keras.Model) -> int:
    """The epoch with which a callback made `fit` start; 0 if no callback did."""
    return _INITIAL_EPOCH.of(model) or 0


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    """Sets the epoch that `fit` starts with; see `initial_epoch`."""
    _INITIAL_EPOCH.write(model, epoch or None)


_BACKUP_EPOCH = touch(
    *("keras.src.callbacks.backup_and_restore:BackupAndRestore", "_current_epoch", WRITTEN),
    why="the callback counts from 0 until an epoch ends. So a backup in the middle of the first "
    "epoch after a restart would name epoch 0",
    versions=KERAS,
    instead="a callback that notes the epoch that `on_epoch_begin` gives",
)


def set_backup_epoch(callback: keras.callbacks.BackupAndRestore, epoch: int) -> None:
    """Tells the callback which epoch begins."""
    _BACKUP_EPOCH.write(callback, epoch)


_REDUCE = touch(
    *("keras.src.backend.tensorflow.trainer", "reduce_per_replica", REPLACED),
    *("values", "strategy", "reduction"),
    why="under MultiWorkerMirrored, Keras reduces logs with one collective operation per value "
    "and step, and fails for scalars. Keras knows no other strategy with several processes",
    versions=KERAS,
    instead="a public method of the strategy",
)


def hook_reduce_per_replica(hook: Callable[[Any, Any, str], Any]) -> None:
    """Makes Keras reduce what a step returns with `hook(strategy, values, reduction)`.

    If the hook returns None, Keras reduces the values itself.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def reduce_per_replica(
            values: Structure, strategy: tf.distribute.Strategy, reduction: str
        ) -> Any:
            reduced = hook(strategy, values, reduction)
            return original(values, strategy, reduction) if reduced is None else reduced

        return reduce_per_replica

    _REDUCE.replace(make)
