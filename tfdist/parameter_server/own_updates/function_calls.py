"""Calls of functions within the graph of a worker."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.structures import Structure


def apart(function: Callable) -> Callable:
    """The function as an operation of the graph around it, whose own operations run one by one.

    They are many and small, and to hand each to another thread would take longer than it does.
    """
    traced = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

    def call(*arguments: Structure) -> Structure:
        with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            return traced(*arguments)

    return call
