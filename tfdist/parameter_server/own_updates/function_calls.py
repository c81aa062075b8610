"""Calls of functions within the graph of a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import tensorflow as tf

from tfdist.structures import Structure


def one_by_one() -> contextlib.AbstractContextManager[None]:
    """In this context, functions are called whose operations run one by one.

    `tf.distribute.Strategy.run` has a thread of its own, which must enter it too: `tf.cond` is made
    for the way in which the function around it runs.
    """
    return tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")


def apart(function: Callable) -> Callable:
    """The function as an operation of the graph around it, whose own operations run one by one.

    They are many and small, and to hand each to another thread would take longer than it does.
    """
    traced = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

    def call(*arguments: Structure) -> Structure:
        with one_by_one():
            return traced(*arguments)

    return call
