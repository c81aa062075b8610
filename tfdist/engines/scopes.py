"""Calls that belong to no strategy's scope and to no function that is being traced."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def outside_of_scopes(function: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
    """Calls `function` where no function is being traced and no strategy's scope is active."""
    if tf.executing_eagerly() and not tf.distribute.has_strategy():
        return function(argument)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # in no scope
        return thread.submit(function, argument).result()
