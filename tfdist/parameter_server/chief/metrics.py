"""What Keras itself does on the parameter servers between the steps of `fit`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist.parameter_server.chief.keras_function import KerasFunction
from tfdist.parameter_server.chief.training import TrainFunction
from tfdist.structures import Structure


@contextlib.contextmanager
def metrics_safely(function: TrainFunction, running: Sequence[KerasFunction]) -> Iterator[None]:
    """In this context, Keras resets and reads metrics again if a parameter server was lost.

    In an evaluation it does not: what was counted is lost, so the evaluation must begin anew.

    Args:
        function: the train function.
        running: the functions of all runs that are under way, the innermost one last.
    """
    attributes = vars(function.model)
    names = [name for name in ("reset_metrics", "get_metrics_result") if name not in attributes]

    def call(method: Callable[[], Structure]) -> Structure:
        if tf.executing_eagerly() and running[-1] is function:
            return function.safely(method)
        return method()

    for name in names:
        attributes[name] = functools.partial(call, getattr(function.model, name))
    try:
        yield
    finally:
        for name in names:
            attributes.pop(name, None)
