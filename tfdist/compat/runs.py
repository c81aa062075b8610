"""Keras' `fit`, `evaluate` and `predict`: what happens around them, instead of them and again."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat.registry import KERAS, REPLACED, touch
from tfdist.structures import Structure

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"

_RUNS = [
    touch(
        *(_TRAINER, name, REPLACED, "self", "x"),
        why="several processes need something around a run (one answer to Ctrl-C, errors that "
        "name the failed rank), without changes to the script",
        versions=KERAS,
        instead="a callback that sees exceptions",
    )
    for name in ("fit", "evaluate", "predict")
]


def hook_runs(context: Callable[..., contextlib.AbstractContextManager]) -> None:
    """Makes `fit`, `evaluate` and `predict` run inside `context(model, method name, arguments)`."""

    def make(name: str, original: Callable) -> Callable:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def run(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            with context(self, name, signature.bind(self, *args, **kwargs).arguments):
                return original(self, *args, **kwargs)

        return run

    for run in _RUNS:
        run.replace(functools.partial(make, run.name))


def hook_repeats(again: Callable[[keras.Model, str, object, Exception], bool]) -> None:
    """Begins `evaluate` and `predict` anew after an error if `again` says so.

    `again` is called with the model, the method's name, what the data were given as, and the error.
    """

    def make(name: str, original: Callable) -> Callable:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def run(self: keras.Model, *args: object, **kwargs: object) -> Structure:
            data = signature.bind(self, *args, **kwargs).arguments.get("x")
            while True:
                try:
                    return original(self, *args, **kwargs)
                except Exception as error:
                    if not again(self, name, data, error):
                        raise

        return run

    for method in _RUNS:
        if method.name != "fit":
            method.replace(functools.partial(make, method.name))
